"""On an SSD that fills up, activations stay, and what cannot stay ends the run with an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import Cli

# Becomes `argv[2:]` with a small file system at argv[1], in a mount namespace that ends with it.
_SMALL_SSD = 'mount -t tmpfs -o size=96m tmpfs "$0" && exec "$@"'

_SCRIPT = """
import contextlib, os, sys
import torch, memtide
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    # 8 layers save 4 MiB each, or 8 with what Tanh returns; chunks in host memory have 16 MiB.
    with memtide.activations("move"):
        loss = model(torch.randn(4096, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())


train()
if len(sys.argv) > 1:
    with open(os.path.join(sys.argv[1], "other"), "wb") as other:
        space = os.statvfs(sys.argv[1])
        os.posix_fallocate(other.fileno(), 0, space.f_bavail * space.f_frsize)
for _ in range(3):
    train()
if len(sys.argv) > 1:
    more = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32)))
"""


@pytest.fixture
def small_ssd(tmp_path: Path) -> Path:
    folder = tmp_path / "ssd"
    folder.mkdir()
    command = ["unshare", "-m", "sh", "-c", _SMALL_SSD, str(folder), "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    return folder


def test_activations_stay_where_the_disk_is_full_and_parameters_are_an_error(
    cli: Cli, small_ssd: Path, tmp_path: Path
) -> None:
    script = tmp_path / "trains.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    plain = cli.python(script).check().out
    flags = ["--device=none", "--host-pool=16MiB", f"--ssd-dir={small_ssd}"]
    memtide = [sys.executable, "-m", "memtide", "run", *flags, str(script), str(small_ssd)]
    inner = ["unshare", "-m", "sh", "-c", _SMALL_SSD, str(small_ssd), *memtide]
    ours = cli.python("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *inner)
    assert ours.out == plain
    assert ours.status == 1
    assert "memtide.errors.NoRoom: " in ours.err
    assert f"in {small_ssd}/" in ours.err and "are free: ENOSPC" in ours.err
