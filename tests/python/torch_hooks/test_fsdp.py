"""FSDP (`fully_shard`) under `memtide run torchrun`: each rank's shards are in chunks."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import SCRIPTS, Cli
from memtide._torch_hooks import fsdp

_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
_SCRIPT = SCRIPTS / "fully_sharded.py"


def _plain(cli: Cli, folder: Path, kind: str) -> Path:
    """The plain script's result."""
    result = folder / "plain"
    run = ["-m", "torch.distributed.run", *_TORCHRUN, _SCRIPT, kind]
    cli.python(*run, RESULT=result).check()
    return result


def _train(cli: Cli, folder: Path, kind: str, *flags: str, **more: object) -> tuple[Path, Any]:
    """Trains with a third of the memory that the ranks need together. Returns the result, and the
    content of the --stats file."""
    result, stats = folder / "ours", folder / "stats"
    pools = ["--host-pool=48MiB", "--ssd-pool=1GiB", f"--ssd-dir={folder / 'ssd'}"]
    run = ["torchrun", *_TORCHRUN, _SCRIPT, kind]
    cli.memtide(
        "run", *pools, "--chunk-size=2MiB", f"--stats={stats}", *flags, *run, RESULT=result, **more
    ).check()
    return result, json.loads(stats.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["whole", "half", "meta"])
def test_parts_in_chunks_give_the_same(kind: str, cli: Cli, tmp_path: Path) -> None:
    plain = _plain(cli, tmp_path, kind)
    result, statistics = _train(cli, tmp_path, kind)
    assert result.read_bytes() == plain.read_bytes()
    for states in ("parameter", "gradient", "optimizer_state"):
        assert statistics["kinds"][states]["allocated_bytes"] > 8 << 20
    assert statistics["moved_bytes"]["ssd_read_bytes"] > statistics["iterations"] << 20
    assert statistics["offloaded_steps"] >= 4


def _memory(*, holding: bool = False) -> Any:
    addresses = SimpleNamespace(here=True)
    return SimpleNamespace(addresses=addresses, ledger=SimpleNamespace(holding=holding))


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parameters whose gradients are adopted."""
    parameters: list[str] = []
    monkeypatch.setattr(
        fsdp, "adopt_part_of_gradient", lambda _memory, parameter: parameters.append(parameter)
    )
    return parameters


class Group:
    """The gradients of a module, which torch reduces at once."""

    def __init__(self, device: str, name: str, log: list[str]) -> None:
        self.device = torch.device(device)
        self.fsdp_params = [SimpleNamespace(sharded_param=name)]
        self._wait_for_post_backward = lambda: log.append(f"wait for {name}")


@pytest.mark.parametrize(
    ("device", "seen"),
    [
        ("cpu", [["c"], ["c", "b"], ["c", "b", "a"]]),
        # On a GPU the gradients of one group are outside of chunks at most.
        ("cuda", [[], ["wait for c", "c"], ["wait for c", "c", "wait for b", "b"]]),
    ],
)
def test_gradients_are_adopted_as_backward_goes(
    device: str, seen: list[list[str]], adopted: list[str]
) -> None:
    groups = [Group(device, name, adopted) for name in "cba"]
    post_backward = fsdp.reducing(_memory(), lambda _: None)
    after = []
    for group in groups:
        post_backward(group)
        after.append(list(adopted))
    assert after == seen
    finalize = fsdp.finalizing(_memory(), lambda _: None)
    finalize(groups[-1])
    assert adopted[-1] == "a"


def test_a_group_that_is_gone_is_not_waited_for(adopted: list[str]) -> None:
    post_backward = fsdp.reducing(_memory(), lambda _: None)
    post_backward(Group("cuda", "old", adopted))
    gc.collect()
    post_backward(Group("cuda", "new", adopted))
    assert adopted == []


def test_gradients_stay_where_they_are_while_all_chunks_are_held(adopted: list[str]) -> None:
    memory = _memory(holding=True)
    group = SimpleNamespace(
        device=torch.device("cpu"), fsdp_params=[SimpleNamespace(sharded_param="a gradient")]
    )
    fsdp.reducing(memory, lambda _: None)(group)
    fsdp.finalizing(memory, lambda _: None)(group)
    assert adopted == []


@pytest.mark.usefixtures("gpu")
def test_parts_are_on_a_gpu_each(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _plain(cli, tmp_path, "steps")
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"{os.environ['MEMTIDE_FAKE_CUDA']},devices=2")
    flags = ["--device-pool=20MiB"]
    result, statistics = _train(cli, tmp_path, "steps", *flags, ON_GPU="1")
    assert result.read_bytes() == plain.read_bytes()
    assert statistics["client"]["faults"] == 0
    assert statistics["moved_bytes"]["device_to_host_bytes"] > statistics["iterations"] << 20
