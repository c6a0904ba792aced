"""Directories of private daemons: several share a parent, and those of killed ones are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Cli
from memtide._daemon import scratch_directory
from memtide._daemon.scratch_directory import ScratchDirectory

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
    link = tmp_path / "memtide-scratch-link0000"
    link.symlink_to(users)
    held = ScratchDirectory(tmp_path)
    ScratchDirectory(tmp_path).remove()
    assert set(tmp_path.iterdir()) == {held.path, users, link}
    held.remove()


def test_no_clock_decides_what_is_swept_up(tmp_path: Path) -> None:
    """The file system's clock may be another one, or be set."""
    ages = (0, 2**32)
    killed = [tmp_path / f"memtide-scratch-{age:012d}" for age in ages]
    for path, age in zip(killed, ages, strict=True):
        path.mkdir()
        os.utime(path, (age, age))
    ScratchDirectory(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


def test_root_leaves_the_directories_of_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "memtide-scratch-12345678"
    others.mkdir()
    own_uid = os.geteuid()
    monkeypatch.setattr(scratch_directory.os, "geteuid", lambda: own_uid + 1)
    ScratchDirectory(tmp_path)
    assert others.exists()


def test_a_directory_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another process swept before it is opened, and then before it is locked."""
    made: list[Path] = []
    mkdtemp, flock = scratch_directory.tempfile.mkdtemp, scratch_directory.fcntl.flock

    def swept_mkdtemp(**arguments: object) -> str:
        made.append(Path(mkdtemp(**arguments)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    def swept_flock(descriptor: int, operation: int) -> None:
        if len(made) == 2:
            made[1].rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(scratch_directory.tempfile, "mkdtemp", swept_mkdtemp)
    monkeypatch.setattr(scratch_directory.fcntl, "flock", swept_flock)
    directory = ScratchDirectory(tmp_path)
    assert list(tmp_path.iterdir()) == [directory.path] == made[2:]
    directory.remove()


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
