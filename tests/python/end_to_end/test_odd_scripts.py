"""Scripts that do what few do, and Python's own tools that run a script: the losses are those
without memtide."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

# At most a third of what each script has at once.
_POOLS = ("--device=none", "--host-pool=16MiB", "--ssd-pool=256MiB")
SCRIPT_NAMES = ("states_by_hand", "changing_shapes", "deterministic", "own_mul", "traced")
# Replaces Tensor.mul_ by a function that counts, in every Python, before memtide is imported.
_REPLACES_MUL = """
import atexit, functools, sys, torch
original, calls = torch.Tensor.mul_, []
@functools.wraps(original)
def mul_(*arguments):
    calls.append(1)
    return original(*arguments)
torch.Tensor.mul_ = mul_
atexit.register(lambda: print(f"{len(calls)} calls"))
"""
# The lines of a script that a debugger stops at: in each step, once.
_DEBUGS = ("b torch.nn.utils.clip_grad_norm_", "c", "u", "p 'stopped'", "c", "cl 1", "c", "q")


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_it_trains_as_without_memtide(
    name: str, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    script, ours, stats = SCRIPTS / f"{name}.py", tmp_path / "ours", tmp_path / "stats"
    cli.memtide("run", "--quiet", *_POOLS, f"--stats={stats}", script, RESULT=ours).check()
    assert_same(reference_runs.result(script), ours)
    assert read(stats)["moved_bytes"]["ssd_read_bytes"] > 0


def test_a_layer_larger_than_the_pool_is_read_once_for_a_product(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    script, ours, trace = SCRIPTS / "large_layer.py", tmp_path / "ours", tmp_path / "trace.json"
    pools = ("--device=none", "--host-pool=8MiB", "--ssd-pool=256MiB", "--chunk-size=2MiB")
    cli.memtide("run", "--quiet", *pools, f"--trace={trace}", script, RESULT=ours).check()
    assert_same(reference_runs.result(script), ours)
    events = [event for event in read(trace)["traceEvents"] if event["ph"] == "X"]
    products = [event for event in events if event["name"] in ("forward", "backward")]
    reads = [event["ts"] for event in events if event["name"].startswith(("demand ", "prefetch "))]
    assert len(products) == 2 * 4
    layer_bytes = 2704 * 1000 * 4
    layer_chunks = math.ceil(layer_bytes / 2**21)
    # A chunk may be evicted between its prefetch and its use, as the pool has four slots. How often
    # that happens depends on the order in which threads get on, above all in the optimizer's step.
    for_products = sum(
        product["ts"] <= start < product["ts"] + product["dur"]
        for product in products
        for start in reads
    )
    assert for_products < 2 * layer_chunks * len(products)
    # A step reads the layer for forward; then the layer, its gradient and its moment for the
    # update. Runs read it 6.5 to 8.1 times a step.
    assert len(reads) * 2**21 < 10 * layer_bytes * 4


def test_a_function_that_was_replaced_before_memtide_is_still_called(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    # Python imports a module of this name when it starts.
    (tmp_path / "sitecustomize.py").write_text(_REPLACES_MUL, encoding="utf-8")
    script, ours = SCRIPTS / "own_mul.py", tmp_path / "ours"
    path = f"{cli.environment({})['PYTHONPATH']}:{tmp_path}"
    run = ("run", "--quiet", *_POOLS, script)
    done = cli.in_new_interpreters().memtide(*run, RESULT=ours, PYTHONPATH=path).check()
    assert_same(reference_runs.result(script), ours)
    assert int(done.out.split()[-2]) > 0


def test_a_script_runs_under_a_tool_that_counts_lines(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    script, ours = SCRIPTS / "deterministic.py", tmp_path / "ours"
    run = ("run", "--quiet", *_POOLS, "-m", "trace", "--count", "-C", tmp_path, script)
    cli.memtide(*run, RESULT=ours).check()
    assert_same(reference_runs.result(script), ours)
    counted = (tmp_path / "deterministic.cover").read_text(encoding="utf-8")
    assert "    6:     optimizer.step()\n" in counted


def test_a_script_runs_under_a_debugger(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    script, ours = SCRIPTS / "deterministic.py", tmp_path / "ours"
    commands = [word for command in _DEBUGS for word in ("-c", command)]
    run = ("run", "--quiet", *_POOLS, "-m", "pdb", *commands, script)
    done = cli.memtide(*run, RESULT=ours).check()
    assert_same(reference_runs.result(script), ours)
    assert done.out.count("stopped") == 1, done.out


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def assert_same(plain: Path, ours: Path) -> None:
    """Compares what common.finish has written of losses."""
    losses = [[float.fromhex(loss) for loss in read(file)["losses"]] for file in (plain, ours)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
