"""Measures what a durable job costs: the time of a step, and the bytes that it writes to SSD.

The script is the demo's GPT under `memtide run --job`, with the pools of placement.py: with each
step on stable storage before the next one begins, with each tenth, and with none. The time is the
mean over all steps but the first ones, as only some of them are durable.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import daemon_process
import machine
from figures import Pair
from memtide._daemon import inspection
from training import resume
from training.placement import POOLS

_WARM_UP_STEPS = 10
_WAYS = {"none": [], "each": ["--durable"], "tenth": ["--durable-every=10"]}


@dataclass(frozen=True)
class _Cost:
    seconds: float
    written_bytes: float


def _cost_of_step(options: resume.NamedRuns, way: str, home: Path) -> _Cost:
    config = home / "config.textproto"
    config.write_text(POOLS, encoding="ascii")
    log = home / way
    with daemon_process.running(
        options.memtided, options.ssd_parent, [f"--config={config}"]
    ) as daemon:
        process = resume.start(daemon, options.script, log, *_WAYS[way])

        def written() -> int:
            node = inspection.inspect(Path(daemon.socket_dir))
            return int(node.counters.get("ssd_written_bytes", 0))

        try:
            resume.wait_for_steps(process, log, _WARM_UP_STEPS)
            before = written()
            times = resume.wait_for_steps(process, log, _WARM_UP_STEPS + options.steps)
            after = written()
        finally:
            process.kill()
            process.wait()
    seconds = sum(times[_WARM_UP_STEPS:])
    return _Cost(seconds / options.steps, (after - before) / options.steps)


def measure(options: resume.NamedRuns) -> dict[str, list[Pair]]:
    """Returns pairs of a step that is not durable and one that is: seconds, and bytes to SSD."""
    samples: dict[str, list[Pair]] = {}
    for number in range(options.rounds):
        load = machine.LoadBesideChildren()
        costs = {}
        with tempfile.TemporaryDirectory(prefix="memtide-bench-") as home:
            # By turns, each is the first.
            for way in list(_WAYS) if number % 2 == 0 else reversed(list(_WAYS)):
                costs[way] = _cost_of_step(options, way, Path(home))
        others = load.of_others()
        for way in ("each", "tenth"):
            plain, durable = costs["none"], costs[way]
            samples.setdefault(f"durable.{way}", []).append(
                Pair(plain.seconds, durable.seconds, others)
            )
            samples.setdefault(f"durable.{way}_bytes", []).append(
                Pair(plain.written_bytes / 2**20, durable.written_bytes / 2**20, others)
            )
    return samples
