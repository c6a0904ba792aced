"""A trace that a run records is planned from as a user does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plans
import pytest
from harness import Cli, Outcome, short_directory
from memtide._plan_file import machine_file

_BLOCKS, _WIDTH, _ROWS = 5, 256, 4096
_TRAIN = f"""
import torch
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear({_WIDTH}, {_WIDTH})
        self.outer = torch.nn.Linear({_WIDTH}, {_WIDTH})
    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))
blocks = [Block() for _ in range({_BLOCKS})]
model = torch.nn.Sequential(torch.nn.Linear({_WIDTH}, {_WIDTH}), *blocks)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(7):
    optimizer.zero_grad()
    model(torch.randn({_ROWS}, {_WIDTH})).square().mean().backward()
    optimizer.step()
"""
_PARAMETERS = (2 * _BLOCKS + 1) * (_WIDTH + 1) * _WIDTH
_TOKENS = ("--batch", 1, "--sequence", _ROWS)
_GPU = ("--gpu", "rtx4090", "--host-memory", "32GiB")


@pytest.fixture(scope="module")
def recorded() -> Iterator[Path]:
    """A folder with a trace of a run whose states do not fit host memory, and one of a run under a
    budget that has no room for all activations."""
    with short_directory() as folder:
        (folder / "train.py").write_text(_TRAIN, encoding="utf-8")
        cli = Cli(folder)
        for name, options in {
            "states": ("--host-pool", "8MiB", "--ssd-pool", "64MiB"),
            "budget": ("--device", "emulated", "--device-memory", "56MiB"),
        }.items():
            trace = ("--trace", f"{name}.trace.gz")
            cli.memtide("run", "--quiet", *options, *trace, "train.py", cwd=folder).check()
        yield folder


def _plan(cli: Cli, folder: Path, name: str, *options: object) -> Outcome:
    return cli.memtide("plan", "--json", "--trace", folder / f"{name}.trace.gz", *options)


def _document(outcome: Outcome) -> Any:
    return json.loads(outcome.check().out)


@pytest.mark.parametrize("name", ["states", "budget"])
def test_the_plan_is_of_the_model_that_ran(cli: Cli, recorded: Path, name: str) -> None:
    done = _plan(cli, recorded, name, *_TOKENS, *_GPU)
    question = _document(done)["question"]
    assert (question["training"]["batch"], question["training"]["sequence"]) == (1, _ROWS)
    # Only chunks are known, and the last one has room left.
    assert _PARAMETERS <= question["model"]["parameters"] <= _PARAMETERS + 2 * 2**20 / 4
    assert question["training"]["states"] == {"weight": 4, "gradient": 4, "optimizer": 8.0}
    # Its times are of the processor here, not of the GPU.
    assert all(block["forward_s_per_token"] is None for block in question["model"]["blocks"])
    assert "the trace's own times are not used" in done.err


def test_a_budget_shows_what_blocks_save(cli: Cli, recorded: Path) -> None:
    answers = {name: _plan(cli, recorded, name, *_TOKENS, *_GPU) for name in ("states", "budget")}
    assert "has no profile of activations" in answers["states"].err
    assert "has no profile of activations" not in answers["budget"].err
    saved = [
        block["count"] * (block["input_bytes_per_token"] + block["rest_bytes_per_token"])
        for block in _document(answers["budget"])["question"]["model"]["blocks"]
    ]
    # Each block saves what it was given, and the result of tanh.
    assert sum(saved) >= _BLOCKS * 2 * 4 * _WIDTH


def test_on_the_machine_that_recorded_it_passes_take_what_they_took(
    cli: Cli, recorded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here = plans.machine()
    slow = replace(here.device, flop_per_s={"float32": 1e6}, pool_bytes=0)
    machine_file.save(replace(here, device=slow), machine_file.default_path(), {})
    document = _document(_plan(cli, recorded, "states", *_TOKENS, "--machine", "this"))
    measured = sum(
        block["count"] * (block["forward_s_per_token"] + block["backward_s_per_token"])
        for block in document["question"]["model"]["blocks"]
    )
    assert document["answer"]["busy"]["compute"] == pytest.approx(measured * _ROWS, rel=0.01)
    assert 0 < measured * _ROWS < 60


def test_a_trace_is_asked_for_its_tokens(cli: Cli, recorded: Path) -> None:
    done = _plan(cli, recorded, "states", *_GPU)
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert "say so with --batch and --sequence" in line
