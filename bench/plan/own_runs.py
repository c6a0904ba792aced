"""Runs random trainings by their plans, and prints what was predicted beside what was measured.

    PYTHONPATH=pyclient python bench/plan/own_runs.py [--runs N] [--seed S]

Each run has a GPT (examples/train_gpt.py), a batch and pools of its own: a host pool from an eighth
of its states to all of them, and the rest on SSD. The machine is measured before every few runs, as
`memtide doctor --measure` does it. Every fifth setting runs twice, which says how much two runs of
one setting differ. Each run uses the files that MEMTIDE_LIBRARY, MEMTIDED and MEMTIDE_REPLAY name,
or else the installed ones. The load is that of all processes, in the minute before a run's end.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memtide._plan_file import plan_file
from memtide._plan_file.machine import Machine
from memtide._plan_file.question import Planned, Question
from memtide._plan_file.training import States, Training
from memtide_plan.estimate.pools import host_reserve, states_bytes
from memtide_plan.fastest import ask
from memtide_plan.measure.this_machine import measure
from memtide_plan.models.described import Described, Options
from memtide_plan.models.source import model_of

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
STEPS = 10
SECOND_RUN_EVERY = 5
# Forward and backward passes compute six operations for each parameter and token.
OPERATIONS = 6
SHORTEST_S, LONGEST_S = 0.1, 1.0
TIMEOUT_S = 300


@dataclass(frozen=True)
class Setting:
    """The numbers that are drawn: sizes of the script, and the host pool's share of the states."""

    layers: int
    width: int
    context: int
    batch: int
    share: float

    def arguments(self) -> list[str]:
        """The script's arguments."""
        sizes = {name: getattr(self, name) for name in ("layers", "width", "context", "batch")}
        return [f"--{name}={value}" for name, value in {**sizes, "steps": STEPS}.items()]

    def __str__(self) -> str:
        return (
            f"{self.layers} x {self.width}, {self.batch} x {self.context}, {self.share:.0%}".ljust(
                28
            )
        )


def draw(generator: random.Random, machine: Machine) -> Setting:
    """A setting whose products of matrices take a tenth of a second to one."""
    while True:
        setting = Setting(
            layers=generator.randint(6, 12),
            width=64 * generator.randint(7, 12),
            context=32 * generator.randint(2, 8),
            batch=generator.randint(1, 8),
            share=2 ** generator.uniform(-3, 0),
        )
        parameters = 12 * setting.layers * setting.width**2
        tokens = setting.batch * setting.context
        seconds = OPERATIONS * parameters * tokens / machine.device.flop_per_s["float32"]
        if SHORTEST_S <= seconds <= LONGEST_S:
            return setting


def plan(setting: Setting, machine: Machine) -> Planned:
    """The answer of `memtide plan SCRIPT` for a machine with this host pool."""
    described: Described = model_of(str(SCRIPT), Options(arguments=tuple(setting.arguments())))
    states = described.states or States()
    pool_bytes = setting.share * states_bytes(described.model, states)
    return ask(
        Question(
            model=described.model,
            machine=replace(machine, host_memory_bytes=pool_bytes + host_reserve(machine)),
            training=Training(
                batch=1,
                sequence=1,
                micro_batch=setting.batch,
                states=states,
                compute_type=described.compute_type or "float32",
            ),
            batch=setting.batch,
            sequence=setting.context,
        )
    )


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """Runs the script by the plan in `folder`, and returns the run's stats."""
    command = [sys.executable, "-P", "-m", "memtide", "run", "--plan", str(folder / "plan.json")]
    command += ["--stats", str(folder / "stats.json"), "--ssd-dir", str(folder / "ssd"), "--quiet"]
    subprocess.run(
        [*command, str(SCRIPT), *setting.arguments()],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )
    stats: dict[str, Any] = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
    return stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure-every", type=int, default=5, metavar="RUNS")
    parser.add_argument("--json", type=Path, help="write every setting, answer and stats here")
    flags = parser.parse_args()
    generator = random.Random(flags.seed)
    errors, differences, all_runs = [], [], []
    print(f"{'layers x width, batch, pool':28} predicted measured  error  again  load", flush=True)
    with tempfile.TemporaryDirectory(prefix="memtide-own-") as scratch:
        folder = Path(scratch)
        for number in range(flags.runs):
            if number % flags.measure_every == 0:
                machine = measure(folder / "ssd").machine
            setting = draw(generator, machine)
            planned = plan(setting, machine)
            if not planned.answer.fits:
                print(f"{setting} {planned.answer.limit}", flush=True)
                continue
            (folder / "plan.json").write_text(plan_file.dumps(planned), encoding="utf-8")
            stats = run(setting, folder)
            step = stats["plan"]["step"]
            errors.append(step["measured"] / step["predicted"] - 1)
            again = ""
            if number % SECOND_RUN_EVERY == 0:
                second_s = run(setting, folder)["plan"]["step"]["measured"]
                differences.append(abs(second_s / step["measured"] - 1))
                again = f"{differences[-1]:.0%}"
            print(
                f"{setting} {step['predicted']:7.3f} s {step['measured']:6.3f} s {errors[-1]:+6.0%}"
                f" {again:>6} {os.getloadavg()[0]:5.1f}",
                flush=True,
            )
            all_runs.append({"plan": plan_file.as_json(planned), "stats": stats})
    if flags.json is not None:
        flags.json.write_text(json.dumps(all_runs), encoding="utf-8")
    if errors:
        print(f"median error of {len(errors)}: {statistics.median(map(abs, errors)):.1%}")
        print(f"median difference of two runs: {statistics.median(differences):.1%}")


if __name__ == "__main__":
    main()
