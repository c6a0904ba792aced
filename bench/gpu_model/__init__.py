"""A GPT of 1.2 B parameters in a quarter of its states' memory, on cards that the fake GPU plays.

Client, daemon and script are real, and so are the shapes; device, link and the prices of the host's
work are the card's (base/cuda/fake/card.h). docs/gpu/model.md says how well this agrees with cards.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from fake_gpu import Options
from figures import Pair

CARDS = ("h100", "h200")
DILATION = 10
MIB = 2**20
_WARM_UP_STEPS = 10  # By then the plan of slots is in force, and mappings stay.
_TIMEOUT_S = 300
_SCRIPT = Path(__file__).with_name("played_script.py")
_SHAPE = "--layers 24 --width 2048 --context 1024 --phases 4 --device fakegpu --dtype bfloat16"
_STATE_MIB = 4 * 2 * 24 * 12 * 2048**2 // MIB


class NotPlayed(Exception):
    """A run failed; the message is its standard error."""


@dataclass(frozen=True)
class Played:
    """A run: the card's milliseconds a step, and the last record of --stats."""

    step_ms: float
    record: dict[str, Any]

    def a_step(self, count: str) -> float:
        """A count of the client."""
        return float(self.record["client"][count]) / float(self.record["iterations"])

    def link_ms(self, card: dict[str, float]) -> float:
        """The time of the last record's bytes, if both ways were always busy together."""
        moved = self.record["moved_bytes"]
        both = moved["host_to_device_bytes"], moved["device_to_host_bytes"]
        together = 2 * min(both) / card["both_gb_s"]
        alone = (max(both) - min(both)) / min(card["in_gb_s"], card["out_gb_s"])
        return (together + alone) / 1e6 / float(self.record["iterations"])


def measure(binaries: Path, root: Path, steps: int) -> dict[str, list[Pair]]:
    """One run on each card."""
    samples: dict[str, list[Pair]] = {}
    for card in CARDS:
        load = machine.LoadBesideChildren()
        played = play(binaries, root, card, steps)
        others = load.of_others()
        link_ms = played.link_ms(costs_of(root, card))
        for figure, limit, product in (
            ("step", 0.0, played.step_ms),
            ("link", link_ms, played.step_ms),
            ("maps", 0.0, played.a_step("maps")),
            ("calls", 0.0, played.a_step("blocking_calls")),
        ):
            samples[f"gpu_model.{card}.{figure}"] = [Pair(limit, product, others)]
    return samples


def play(
    binaries: Path,
    root: Path,
    card: str,
    steps: int,
    flags: tuple[str, ...] = ("--chunk-size=64MiB",),
) -> Played:
    """Runs the script under memtide on a card. `flags`: of `memtide run`."""
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as scratch:
        log, stats = Path(scratch) / "log", Path(scratch) / "stats"
        command = [
            *(sys.executable, "-m", "memtide", "run", "--quiet", "--device=cuda", "--ssd-pool=0"),
            *(f"--device-pool={_STATE_MIB // 4}MiB", f"--host-pool={_STATE_MIB * 11 // 10}MiB"),
            *(*flags, f"--stats={stats}", str(_SCRIPT), *_SHAPE.split()),
            *("--steps", str(steps), "--log", str(log)),
        ]
        with _first_in_turn():
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                env={**os.environ, **_environment(binaries, root, card, scratch)},
            )
        if done.returncode != 0:
            raise NotPlayed(done.stderr.strip())
        lines = log.read_text(encoding="utf-8").splitlines()
        settled = lines[min(_WARM_UP_STEPS, len(lines) - 1) :]
        seconds = sorted(json.loads(line)["seconds"] for line in settled)
        records = json.loads(stats.read_text(encoding="utf-8"))["records"]
    return Played(seconds[len(seconds) // 2] * 1e3 / DILATION, records[-1])


def costs_of(root: Path, card: str) -> dict[str, float]:
    """The numbers of a card's file."""
    lines = (root / "base/cuda/fake/cards" / card).read_text(encoding="utf-8").splitlines()
    words = [line.partition("#")[0].split() for line in lines]
    return {name: float(cost) for name, cost in filter(None, words)}


def _environment(binaries: Path, root: Path, card: str, directory: str) -> dict[str, str]:
    sys.path.append(str(root / "tests" / "python" / "testing"))
    from fake_device import environment  # Compiles torch's backend.

    client = binaries / "client" / "libmemtide_fake_cuda.so"
    memtided = binaries / "daemon" / "memtided_fake_cuda"
    Options(client, memtided, _SCRIPT, most_pairs=1, most_seconds=0).check()
    file = root / "base/cuda/fake/cards" / card
    return {
        **environment(),
        "MEMTIDE_LIBRARY": str(client),
        "MEMTIDED": str(memtided),
        "MEMTIDE_FAKE_CUDA": f"dir={directory},memory=80GiB,tensors=backend,card={file},"
        f"dilation={DILATION}",
        "XDG_CACHE_HOME": directory,  # Answers that other GPUs gave a daemon are not this one's.
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def _first_in_turn() -> Iterator[None]:
    """Processes that start in the block go before others, where that is permitted: they use little
    CPU time, and what they wait for a CPU would be taken for the card's."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(
            0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
        )
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
