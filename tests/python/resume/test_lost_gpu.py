"""A GPU is lost while two scripts train on a daemon of two: it costs the script that is on it, and
`--resume` continues that one when the GPU works again."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from memtide._daemon import inspection
from stepping_script import node_daemon

STEPS, WAIT_AT = 7, 3
PATIENCE_S = 120


def losses_of(path: Path) -> dict[str, str]:
    """The loss of each step; asserts that a repeated step has the same loss."""
    losses: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        step, loss, _ = line.split()
        assert losses.setdefault(step, loss) == loss, f"step {step} was not the same again"
    return losses


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Asks until it holds: neither a script's file nor the daemon's status tells of a change."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.01)


def wait_for_steps(result: Path, script: subprocess.Popen[str]) -> None:
    def has_steps() -> bool:
        assert script.poll() is None, script.communicate()
        return result.exists() and len(losses_of(result)) > WAIT_AT

    wait_until(has_steps, f"{WAIT_AT + 1} steps of a script")


def wait_until_usable(sockets: Path) -> None:
    def is_usable() -> bool:
        return not any("was lost" in line for line in inspection.inspect(sockets).warnings)

    wait_until(is_usable, "the GPU is used again")


def test_a_lost_gpu_costs_only_the_script_on_it(
    gpu: None, monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path
) -> None:
    fake = os.environ["MEMTIDE_FAKE_CUDA"]
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"{fake},devices=2")
    lost_0 = Path(re.findall("dir=([^,]*)", fake)[0]) / "lost-0"
    whole, lost, other = (tmp_path / name for name in ("whole", "lost", "other"))
    go = tmp_path / "go"
    with node_daemon(
        tmp_path / "ssd", "--device-pool=20MiB", host_pool="80MiB", device="cuda"
    ) as sockets:

        def command(*more: str) -> list[object]:
            place = [f"--socket-dir={sockets}", "--chunk-size=2MiB"]
            return ["run", *place, *more, SCRIPTS / "resumable.py", STEPS]

        cli.memtide(*command(), RESULT=whole).check()
        expected = losses_of(whole)
        assert len(expected) == STEPS
        waits = {"WAIT_AT": str(WAIT_AT), "WAIT_FOR": str(go)}
        # A script names its own cuda:0.
        second = {"CUDA_VISIBLE_DEVICES": "1", **waits}
        with contextlib.ExitStack() as scripts:
            scripts.callback(go.touch)
            on_gpu_0 = cli.start_memtide(*command("--job=one"), RESULT=lost, **waits)
            on_gpu_1 = cli.start_memtide(*command(), RESULT=other, **second)
            wait_for_steps(lost, on_gpu_0)
            wait_for_steps(other, on_gpu_1)
            lost_0.write_text("x", encoding="utf-8")
        _, said_on_gpu_0 = on_gpu_0.communicate(timeout=PATIENCE_S)
        _, said_on_gpu_1 = on_gpu_1.communicate(timeout=PATIENCE_S)
        assert on_gpu_1.returncode == 0, said_on_gpu_1
        assert losses_of(other) == expected
        assert on_gpu_0.returncode != 0
        assert "was lost" in said_on_gpu_0, said_on_gpu_0
        wait_until_usable(sockets)
        cli.memtide(*command("--job=one", "--resume"), RESULT=lost).check()
    assert losses_of(lost) == expected
