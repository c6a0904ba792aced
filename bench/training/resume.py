"""Measures the time from `kill -9` of a training script to its first step after `--resume`.

The script is the demo's GPT under `memtide run --job`. The daemon has the pools of placement.py,
and runs all the time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import daemon_process
import machine
from figures import Pair
from training.placement import POOLS

_STEPS_BEFORE = 5
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class NamedRuns:
    """How runs of a named job are measured: each has `steps` steps beside the first ones, and a
    round is a run of each way that is compared."""

    memtided: Path
    ssd_parent: Path
    script: Sequence[str]
    steps: int
    rounds: int


class ResumeFailed(Exception):
    """The script made no step; the message is its output."""


def start(
    daemon: daemon_process.Daemon, script: Sequence[str], log: Path, *more: str
) -> subprocess.Popen:
    """Starts the script as a named job; `log` gets a line of each step."""
    command = [sys.executable, "-m", "memtide", "run", "--quiet", "--job=gpt", *more]
    command += [f"--socket-dir={daemon.socket_dir}", *script, "--steps=1000", f"--log={log}"]
    with log.with_suffix(".output").open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )


def wait_for_steps(process: subprocess.Popen, log: Path, count: int) -> list[float]:
    """Waits for `count` steps, and returns the seconds of each."""
    deadline = time.monotonic() + _PATIENCE_S
    pause = threading.Event()
    while True:
        lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
        if len(lines) >= count:
            return [json.loads(line)["seconds"] for line in lines[:count]]
        if process.poll() is not None or time.monotonic() > deadline:
            raise ResumeFailed(log.with_suffix(".output").read_text(errors="replace"))
        pause.wait(0.01)


def measure(memtided: Path, ssd_parent: Path, script: Sequence[str], rounds: int) -> list[Pair]:
    """Returns pairs of seconds: a step, and from the kill to the end of the first step after it."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="memtide-bench-") as name:
        home = Path(name)
        config = home / "config.textproto"
        config.write_text(POOLS, encoding="ascii")
        for number in range(rounds):
            load = machine.LoadBesideChildren()
            with daemon_process.running(memtided, ssd_parent, [f"--config={config}"]) as daemon:
                log = home / f"first{number}"
                process = start(daemon, script, log)
                try:
                    step_s = statistics.median(wait_for_steps(process, log, _STEPS_BEFORE)[2:])
                finally:
                    process.kill()
                    began = time.monotonic()
                    process.wait()
                log = home / f"second{number}"
                process = start(daemon, script, log, "--resume")
                try:
                    wait_for_steps(process, log, 1)
                    took_s = time.monotonic() - began
                finally:
                    process.kill()
                    process.wait()
            pairs.append(Pair(step_s, took_s, load.of_others()))
    return pairs
