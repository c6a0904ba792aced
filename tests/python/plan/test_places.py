"""The least drive of a plan is the least that a run takes: it refuses a smaller one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import plans
import pytest
from harness import Cli
from memtide._plan_file import machine_file, plan_file
from memtide._util.sizes import parse_size
from memtide_plan.ask.machine import machine_of
from memtide_plan.ask.words import MachineWords
from memtide_plan.estimate.pools import host_reserve

_HOST_POOL = 48 * plans.MIB
_TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(18)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script of 76 MiB of states, and with a file of this machine, whose host pool
    is smaller."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text(_TRAIN, encoding="utf-8")
    here = plans.machine()
    here = replace(
        here,
        device=replace(here.device, pool_bytes=0),
        host_memory_bytes=_HOST_POOL + host_reserve(here),
    )
    machine_file.save(here, machine_file.default_path(), {})
    return tmp_path


def test_a_run_takes_the_least_drive_of_a_plan_and_refuses_a_smaller_one(
    cli: Cli, folder: Path
) -> None:
    question = ("--machine", "this", "--batch", 8, "--sequence", 1, "--output", "plan.json")

    def plan(drive_bytes: int) -> tuple[int, str]:
        size = ("--ssd-size", f"{drive_bytes}B")
        done = cli.memtide("plan", "train.py", *question, *size, cwd=folder)
        return done.status, done.out

    status, answer = plan(64 * plans.MIB)
    assert status == 3
    found = re.search(r"every chunk has its place there\) of at least (\S+ \S+) would", answer)
    assert found is not None
    least_bytes = parse_size(found[1].replace(" ", ""))
    assert plan(least_bytes - 1)[0] == 3
    status, answer = plan(least_bytes)
    assert status == 0, answer
    written = plan_file.load(folder / "plan.json")
    assert written.choice.ssd_pool_bytes == least_bytes
    run = ("run", "--quiet", "--plan", "plan.json")
    cli.memtide(*run, "train.py", cwd=folder).check()
    less = ("--ssd-pool", f"{least_bytes - written.choice.chunk_bytes}B")
    refused = cli.memtide(*run, *less, "train.py", cwd=folder)
    assert refused.status != 0
    assert "the ssd pool's" in refused.err


def test_without_a_place_for_every_chunk_a_drive_is_left_out(cli: Cli, folder: Path) -> None:
    # Host memory holds all states, and the drive does not: a pool on it would be refused.
    machine = machine_of(MachineWords(machine="this"))
    large = replace(machine, host_memory_bytes=machine.host_memory_bytes + 64 * plans.MIB)
    machine_file.save(large, machine_file.default_path(), {})
    question = ("--machine", "this", "--batch", 8, "--sequence", 1, "--ssd-size", "60MiB")
    cli.memtide("plan", "train.py", *question, "--output", "plan.json", cwd=folder).check()
    assert plan_file.load(folder / "plan.json").choice.ssd_pool_bytes == 0
