"""`memtide run --share PATH --delink-at-step N` gives the bits of a script that shares and delinks
by calls, in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli, Outcome

_SHARED = ("--share=model.blocks", "--delink-at-step=3")
_SCRIPT = SCRIPTS / "sharing.py"
_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]


def _run(
    cli: Cli, folder: Path, *more: object, host_mib: int = 12, **environment: object
) -> Outcome:
    pools = (
        f"--host-pool={host_mib}MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={folder}",
        "--chunk-size=2MiB",
    )
    return cli.memtide("run", *pools, *more, **environment)


def _read(*files: Path) -> list[Any]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.parametrize("environment", [{}, {"GROUPS": 1}])
def test_a_script_that_is_not_changed_has_the_bits_of_one_that_shares(
    environment: dict[str, object], cli: Cli, tmp_path: Path
) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    cli.python(_SCRIPT, BY_HAND=1, RESULT=plain, OMP_NUM_THREADS=1, **environment).check()
    done = _run(
        cli, tmp_path, *_SHARED, _SCRIPT, RESULT=ours, OMP_NUM_THREADS=1, **environment
    ).check()
    one, other = _read(plain, ours)
    assert one == other
    assert "3 layers of model.blocks share their parameters" in done.err
    assert "layers of model.blocks have parameters of their own" in done.err


def test_ranks_go_on_with_their_distributed_data_parallel(cli: Cli, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    launch = ["-m", "torch.distributed.run", *_TORCHRUN]
    cli.python(*launch, _SCRIPT, BY_HAND=1, RESULT=plain, OMP_NUM_THREADS=1).check()
    ranks = (*_SHARED, "torchrun", *_TORCHRUN, _SCRIPT)
    _run(cli, tmp_path, *ranks, host_mib=32, RESULT=ours, OMP_NUM_THREADS=1).check()
    for rank in "01":
        one, other = _read(Path(f"{plain}{rank}"), Path(f"{ours}{rank}"))
        assert one == other


def test_a_path_that_names_no_layers_is_answered_with_those_that_could(
    cli: Cli, tmp_path: Path
) -> None:
    done = _run(cli, tmp_path, "--share=model.layers", _SCRIPT, RESULT=tmp_path / "result")
    assert done.status == 1
    assert "memtide: --share model.layers: no module of this path is in a model that" in done.err
    assert "layers that are alike are in blocks (3 layers)" in done.err
    assert "Traceback" not in done.err
    done = _run(cli, tmp_path, "--share=model", _SCRIPT, RESULT=tmp_path / "result")
    assert "memtide: --share model: weight is (64, 256) of torch.float32 in layer 1" in done.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--delink-at-step=3",), "--delink-at-step needs layers that share: --share PATH"),
        (("--share=model.blocks", "--delink-at-step=0"), "--delink-at-step counts from 1"),
        (("--share=model.blocks", "--job=j"), "--share does not go with --job"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    flags: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    done = _run(cli, tmp_path, *flags, _SCRIPT)
    assert done.status == 2
    assert message in done.err
