"""An SSD that returns other bytes than were written: a named job ends, and trains with none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, short_directory
from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import answers

_SCRIPT = SCRIPTS / "flips_ssd.py"


@pytest.mark.parametrize("verify", ["kept", "off"])
def test_a_named_job_never_trains_with_wrong_bytes(verify: str, cli: Cli, tmp_path: Path) -> None:
    ssd, log = tmp_path / "ssd", tmp_path / "log"
    with short_directory() as home, log.open("wb") as output:
        flags = [f"--socket-dir={home}", f"--ssd-dir={ssd}", "--ssd-pool=512MiB"]
        flags += ["--host-pool=16MiB", "--device=none", "--metrics-address=off"]
        with subprocess.Popen(
            [find_daemon(), *flags, f"--verify={verify}"], stderr=output
        ) as daemon:
            try:
                while not answers(home):
                    assert daemon.poll() is None, "the daemon does not start"
                run = [
                    "run",
                    "--quiet",
                    f"--socket-dir={home}",
                    "--job=one",
                    "--chunk-size=2MiB",
                    _SCRIPT,
                ]
                done = cli.memtide(*run, DAEMON=daemon.pid, SSD_DIR=ssd)
            finally:
                daemon.terminate()
    steps = sum(line.split()[0].isdigit() for line in done.out.splitlines() if line.strip())
    if verify == "off":
        assert (done.status, steps) == (0, 4), "what the script does would be seen by nothing else"
        return
    assert done.status != 0, done.out
    assert steps == 2, done.out
    assert "returned other bytes than were written" in done.err
    log_text = log.read_text(encoding="utf-8")
    assert 'of job "one": the SSD returned other bytes than were written' in log_text
