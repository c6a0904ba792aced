"""Measures what checksums of a named job cost: CPU seconds of a step, verified and not.

The script is the demo's GPT under `memtide run --job`, with the pools of placement.py. The CPU time
is that of the script and of its daemon, over all steps but the first ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import daemon_process
import machine
from figures import Pair
from training import resume
from training.placement import POOLS

_WARM_UP_STEPS = 3


def _cpu_seconds_of_step(options: resume.NamedRuns, verify: str, home: Path) -> float:
    config = home / "config.textproto"
    config.write_text(POOLS, encoding="ascii")
    flags = [f"--config={config}", f"--verify={verify}"]
    log = home / verify
    with daemon_process.running(options.memtided, options.ssd_parent, flags) as daemon:
        process = resume.start(daemon, options.script, log)

        def used() -> float:
            return machine.cpu_seconds_of(daemon.pid) + machine.cpu_seconds_of(process.pid)

        try:
            resume.wait_for_steps(process, log, _WARM_UP_STEPS)
            before = used()
            resume.wait_for_steps(process, log, _WARM_UP_STEPS + options.steps)
            return (used() - before) / options.steps
        finally:
            process.kill()
            process.wait()


def measure(options: resume.NamedRuns) -> dict[str, list[Pair]]:
    """Returns pairs of CPU seconds of a step: unverified and verified."""
    pairs = []
    for number in range(options.rounds):
        load = machine.LoadBesideChildren()
        seconds = {}
        with tempfile.TemporaryDirectory(prefix="memtide-bench-") as home:
            # By turns, each is the first.
            for verify in ("off", "kept") if number % 2 == 0 else ("kept", "off"):
                seconds[verify] = _cpu_seconds_of_step(options, verify, Path(home))
        pairs.append(Pair(seconds["off"], seconds["kept"], load.of_others()))
    return {"verify.cpu": pairs}
