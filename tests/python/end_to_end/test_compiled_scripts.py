"""torch.compile under `memtide run`, on a fake GPU and on the host: what is compiled runs compiled,
with the same bits as without memtide, and without a warning."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli

_LAYERS, _STEPS = 3, 5
_ONE_REGION = {"compiled": 1, "forward": _STEPS, "backward": _STEPS}
# A model that is too large is compiled by its blocks, all by the same code.
_BLOCKS = {"compiled": 1, "forward": _LAYERS * _STEPS, "backward": _LAYERS * _STEPS}


def run_both(
    cli: Cli, tmp_path: Path, options: list[str], script: list[Any], how: str, **environment: Any
) -> tuple[dict[str, int], Any]:
    """The counts of the script under memtide, and the moved bytes. How it is compiled without
    memtide is `how`; with it, the whole model is to be compiled."""
    plain, offloaded, stats = (tmp_path / name for name in ("plain", "offloaded", "stats"))
    script = [SCRIPTS / "compiled.py", *script]
    expected = cli.python(*script, how, RESULT=plain, **environment).check()
    outcome = cli.memtide(
        *("run", "--quiet", *options, "--ssd-pool=256MiB"),
        *(f"--ssd-dir={tmp_path / 'ssd'}", f"--stats={stats}", *script, "whole"),
        RESULT=offloaded,
        **environment,
    ).check()
    results = [json.loads(path.read_text()) for path in (plain, offloaded)]
    assert results[0]["losses"] == results[1]["losses"]
    assert results[0]["digests"] == results[1]["digests"]
    counts, warned = ast.literal_eval(f"[{outcome.out.replace('} [', '}, [')}]")
    assert warned == []
    assert outcome.out == expected.out, "the same is compiled, and runs as often"
    return counts, json.loads(stats.read_text())["moved_bytes"]


@pytest.mark.parametrize(
    ("pool_mib", "how", "counts"),
    [
        pytest.param(64, "whole", _ONE_REGION, id="all states fit"),
        pytest.param(14, "whole", _ONE_REGION, id="all parameters fit"),
        # A quarter of the states, and less than the parameters.
        pytest.param(10, "blocks", _BLOCKS, id="blocks fit"),
    ],
)
def test_on_a_gpu_regions_that_fit_run_compiled(
    cli: Cli,
    fake_device: dict[str, str],
    tmp_path: Path,
    pool_mib: int,
    how: str,
    counts: dict[str, int],
) -> None:
    options = ["--device=cuda", f"--device-pool={pool_mib}MiB", "--host-pool=24MiB"]
    script = ["fakegpu", _STEPS, "counted"]
    counted, moved = run_both(cli, tmp_path, options, script, how, **fake_device)
    assert counted == counts
    assert (moved["host_to_device_bytes"] == 0) == (pool_mib == 64)


@pytest.mark.parametrize(("pool_mib", "how"), [(64, "whole"), (16, "blocks")])
def test_in_host_memory_it_is_the_same(cli: Cli, tmp_path: Path, pool_mib: int, how: str) -> None:
    options = ["--device=none", f"--host-pool={pool_mib}MiB"]
    counted, _ = run_both(cli, tmp_path, options, ["cpu", _STEPS, "counted"], how)
    assert counted == (_ONE_REGION if how == "whole" else _BLOCKS)


@pytest.mark.usefixtures("gpu")
def test_code_that_inductor_makes_runs_under_leases(cli: Cli, tmp_path: Path) -> None:
    options = ["--device=cuda", "--device-pool=10MiB", "--host-pool=24MiB"]
    script = ["cpu", 3, "inductor"]
    # A chunk without a lease is at no address: a kernel over it would end the process.
    counted, moved = run_both(cli, tmp_path, options, script, "blocks", ON_GPU=1)
    assert counted["compiled"] == 1
    assert moved["host_to_device_bytes"] > 0
