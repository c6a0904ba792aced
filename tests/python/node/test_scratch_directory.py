"""Directories of private daemons: several share a parent, and those of killed ones are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Cli
from memtide._node.scratch_directory import ScratchDirectory

POOLS = ("--host-pool=16MiB", "--ssd-pool=64MiB")

# Trains three steps, and runs the command in its arguments, if any, before the second.
TRAIN = """
import subprocess, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    if step == 1 and sys.argv[1:]:
        subprocess.run([sys.executable, *sys.argv[1:]], check=True)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 512)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    return script


def test_what_a_killed_script_left_is_swept_up_and_nothing_else(tmp_path: Path) -> None:
    killed, users = tmp_path / "memtide-scratch-12345678", tmp_path / "memtide-results"
    for path in (killed, users):
        path.mkdir()
        os.utime(path, (0, 0))
    held = ScratchDirectory(tmp_path)
    os.utime(held.path, (0, 0))
    ScratchDirectory(tmp_path).remove()
    assert set(tmp_path.iterdir()) == {held.path, users}
    held.remove()


def test_runs_at_the_same_time_share_an_ssd_directory(
    cli: Cli, train: Path, tmp_path: Path
) -> None:
    ssd = tmp_path / "ssd"
    plain = cli.python(train).check().out.splitlines()
    run = ("run", "--quiet", *POOLS, "--ssd-dir", ssd, train)
    both = cli.memtide(*run, "-m", "memtide", *run).check().out.splitlines()
    assert both == [plain[0], *plain, *plain[1:]]
    assert not list(ssd.iterdir())


def test_an_ssd_directory_that_cannot_be_written_is_named(cli: Cli, train: Path) -> None:
    done = cli.memtide("run", *POOLS, "--ssd-dir", train, train)
    assert (done.status, done.out) == (1, "")
    assert str(train) in done.err
    assert "set --ssd-dir to a directory that you can write to" in done.err


def test_an_ssd_directory_below_none_is_refused(cli: Cli, train: Path) -> None:
    done = cli.memtide("run", *POOLS, "--ssd-dir", train / "below", train)
    assert (done.status, done.out) == (2, "")
    assert done.err == f"memtide: --ssd-dir {train / 'below'}: there is no directory {train}\n"
    assert "Traceback" not in done.err
