"""Times the demo's GPT with all states on the SSD, under memtide and DeepSpeed ZeRO-Infinity.

    peers.py --binaries DIR --ssd-dir DIR [--rounds N] [--steps N] [--memory MIB]

A round runs the same steps in plain torch, memtide and ZeRO-Infinity, one after the other; the
order rotates from round to round. Prints samples on standard output as lines of JSON, and tables on
standard error. Exits with status 1 if losses differ by more than TOLERANCE. Called by
bench/peers/peers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import daemon_process  # noqa: E402
import machine  # noqa: E402
import observe  # noqa: E402
import samples  # noqa: E402
from figures import Pair  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "examples" / "train_gpt.py"
# Step 1 creates the optimizer's state; in the next ones both sides learn the order of an iteration.
WARM_UP_STEPS = 3
# As a share of the loss: kernels round differently from torch, and AdamW's first steps amplify it.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Run:
    """One run: its losses, and what a step after warm-up costs. `seconds` is the median step."""

    name: str
    losses: list[float]
    seconds: float
    cost: observe.Cost
    others_cpus: float = 0.0


@dataclass(frozen=True)
class Bench:
    """The options of every run. memtide's host pool and DeepSpeed's buffers have `memory_mib`."""

    binaries: Path
    ssd_dir: Path
    memory_mib: int
    steps: int
    model: Sequence[str]

    def plain(self) -> Run:
        return self._watch("plain torch", [sys.executable, str(SCRIPT)], daemon=None)

    def memtide(self) -> Run:
        daemon_program = self.binaries / "daemon" / "memtided"
        pools = [f"--host-pool={self.memory_mib}MiB"]
        with daemon_process.running(daemon_program, self.ssd_dir, pools) as daemon:
            command = [sys.executable, "-m", "memtide", "run", "--quiet"]
            command += [f"--socket-dir={daemon.socket_dir}", str(SCRIPT)]
            return self._watch("memtide", command, daemon.pid)

    def zero_infinity(self) -> Run:
        script = Path(__file__).with_name("zero_infinity.py")
        with tempfile.TemporaryDirectory(prefix="zero-", dir=self.ssd_dir) as files:
            command = [sys.executable, str(script), f"--nvme={files}"]
            command.append(f"--memory={self.memory_mib}")
            return self._watch("ZeRO-Infinity", command, daemon=None)

    def _watch(self, name: str, command: list[str], daemon: int | None) -> Run:
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.ssd_dir) as home:
            log, output = Path(home) / "log", Path(home) / "output"
            command += [*self.model, "--steps", str(self.steps), "--log", str(log)]
            with output.open("wb") as into:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=into,
                    stderr=into,
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                )
                cost = observe.until_end(process, log, daemon, (WARM_UP_STEPS, self.steps))
            if process.returncode != 0:
                printed = output.read_text(encoding="utf-8", errors="replace")
                sys.exit(f"{name} ended with status {process.returncode}:\n{printed[-4000:]}")
            entries = [json.loads(text) for text in log.read_text(encoding="ascii").splitlines()]
        return Run(
            name,
            [float.fromhex(entry["loss"]) for entry in entries],
            statistics.median(entry["seconds"] for entry in entries[WARM_UP_STEPS:]),
            cost,
        )


def alone(kind: Callable[[], Run]) -> Run:
    """Makes a run, and measures how many CPUs other processes use during it."""
    load = machine.LoadBesideChildren()
    run = kind()
    return replace(run, others_cpus=load.of_others())


def table(runs: list[Run]) -> str:
    """A table in Markdown: a row for each kind of run, with medians over the rounds."""
    rows = [
        "| run | step | read a step | written a step | memory | others |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run.name for run in runs):
        these = [run for run in runs if run.name == name]

        def middle(value: Any, these: list[Run] = these) -> float:
            return statistics.median(value(run) for run in these)

        rows.append(
            f"| {name} | {middle(lambda run: run.seconds):.2f} s"
            f" | {middle(lambda run: run.cost.read_bytes) / 2**20:,.0f} MiB"
            f" | {middle(lambda run: run.cost.written_bytes) / 2**20:,.0f} MiB"
            f" | {middle(lambda run: run.cost.memory_bytes) / 2**20:,.0f} MiB"
            f" | {middle(lambda run: run.others_cpus):.2f} CPUs |"
        )
    return "\n".join(rows)


def largest_difference(losses: Sequence[float], plain: Sequence[float]) -> float:
    """The largest difference from a loss of plain torch, as a share of that loss."""
    return max(abs(a - b) / b for a, b in zip(losses, plain, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--binaries", type=Path, required=True, help="the build's output folder")
    parser.add_argument("--ssd-dir", type=Path, required=True, help="a folder on the disk to use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=8, help=f"of a run, {WARM_UP_STEPS} of them to warm up"
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=192,
        metavar="MIB",
        help="size of the pool, and of all buffers",
    )
    parser.add_argument("--layers", default="12")
    parser.add_argument("--width", default="512", help="read README.md before you change it")
    arguments = parser.parse_args()
    arguments.ssd_dir.mkdir(parents=True, exist_ok=True)
    model = ["--layers", arguments.layers, "--width", arguments.width]
    bench = Bench(arguments.binaries, arguments.ssd_dir, arguments.memory, arguments.steps, model)
    runs: list[Run] = []
    pairs = []
    for number in range(arguments.rounds):
        kinds = [bench.plain, bench.memtide, bench.zero_infinity]
        rotated = kinds[number % 3 :] + kinds[: number % 3]
        done = {run.name: run for run in (alone(kind) for kind in rotated)}
        runs += done.values()
        peer, ours = done["ZeRO-Infinity"], done["memtide"]
        others = max(peer.others_cpus, ours.others_cpus)
        pairs.append(Pair(peer.seconds, ours.seconds, others))
        for run in done.values():
            print(
                f"{run.name}: {run.seconds:.2f} s, {run.cost}, others {run.others_cpus:.2f}",
                file=sys.stderr,
            )
    samples.show({"peers.zero_infinity": pairs})
    print(table(runs), file=sys.stderr)
    plain = next(run for run in runs if run.name == "plain torch").losses
    for name in ("memtide", "ZeRO-Infinity"):
        differs = max(largest_difference(run.losses, plain) for run in runs if run.name == name)
        print(f"{name}: losses within {differs:.2g} of plain torch's", file=sys.stderr)
        if differs > TOLERANCE:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
