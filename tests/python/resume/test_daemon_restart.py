"""The daemon is killed while a script trains; `--resume` continues the job that the next daemon has
restored."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, short_directory
from service_manager import ServiceManager

STEPS = 7
PATIENCE_S = 120


@pytest.fixture(params=["none", "cuda"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    device = ["--device=none"]
    if request.param == "cuda":
        request.getfixturevalue("gpu")
        device = ["--device=cuda", "--device-pool=20MiB"]
    with short_directory() as home:
        started = ServiceManager(
            home,
            [
                *device,
                "--host-pool=40MiB",
                "--ssd-pool=1GiB",
                f"--ssd-dir={tmp_path / 'ssd'}",
                "--metrics-address=off",
            ],
        )
        started.start()
        yield started
        started.close()


def losses_of(path: Path) -> dict[str, str]:
    """The loss of each step; asserts that a repeated step has the same loss."""
    losses: dict[str, str] = {}
    for line in path.read_text().splitlines():
        step, loss, _ = line.split()
        assert losses.setdefault(step, loss) == loss, f"step {step} was not the same again"
    return losses


def test_training_goes_on_after_the_daemon_was_killed(
    manager: ServiceManager, cli: Cli, tmp_path: Path
) -> None:
    def command(*more: str) -> list[object]:
        place = [f"--socket-dir={manager.home}", "--chunk-size=2MiB"]
        return ["run", *place, *more, SCRIPTS / "resumable.py", STEPS]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    cli.memtide(*command(), RESULT=whole).check()
    expected = losses_of(whole)
    assert len(expected) == STEPS
    for steps in (2, 4):
        more = ["--resume"] if steps > 2 else []
        with cli.start_memtide(*command("--job=one", *more), RESULT=killed) as script:
            wait_for_steps(killed, steps, script)
            manager.kill()
            _, printed = script.communicate(timeout=PATIENCE_S)
        assert script.returncode != 0
        assert "daemon" in printed, printed
        manager.start()
    cli.memtide(*command("--job=one", "--resume"), RESULT=killed).check()
    assert losses_of(killed) == expected


def wait_for_steps(result: Path, steps: int, script: subprocess.Popen[str]) -> None:
    while not result.exists() or len(losses_of(result)) < steps:
        assert script.poll() is None, script.communicate()
