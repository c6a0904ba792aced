"""Times training steps under `memtide run` against the same steps in plain torch, or under
`memtide run` with other arguments.

Both processes live at the same time and take turns: while one makes a step, all threads of the
other sleep. Every pair of samples is the same step of the same training.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import machine
from figures import ENOUGH_PAIRS, QUIET_CPUS, Pair

# Step 1 creates the optimizer's state; steps 2 and 3 touch some pages for the first time.
WARM_UP_STEPS = 3


@dataclass(frozen=True)
class StepOptions:
    """`arguments` go to the script, `environment` to both runs. `most_...` bound the rounds if the
    machine is never quiet. A sample is the mean of `steps_per_sample` steps, one after the other.
    `limit_arguments`: the run to compare with is under `memtide run`, too, with these arguments.
    """

    script: Path
    arguments: Sequence[str]
    memtide_arguments: Sequence[str]
    most_pairs: int
    most_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    steps_per_sample: int = 1
    warm_up_steps: int = WARM_UP_STEPS
    limit_arguments: Sequence[str] | None = None


class TrainingEnded(Exception):
    """One of the two runs ended too early; its standard error has the reason."""


class _Run:
    """One of the two runs, waiting for its turn."""

    def __init__(self, command: Sequence[str], options: StepOptions) -> None:
        self._steps = options.steps_per_sample
        self._done, done = os.pipe()
        go, self._go = os.pipe()
        # Threads that spin while they wait would take the other run's cores.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= options.environment
        script = [str(options.script), *options.arguments]
        wrapper = Path(__file__).with_name("alternate_steps.py")
        self._process = subprocess.Popen(
            [*command, str(wrapper), str(done), str(go), *script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[done, go],
            env=environment,
        )
        os.close(done)
        os.close(go)

    def wait_for_step(self) -> None:
        if not os.read(self._done, 1):
            raise TrainingEnded(f"training ended with status {self._process.wait()}")

    def sample(self) -> tuple[float, float]:
        """The mean seconds of a step, and those of CPU time of its process."""
        began, used = time.perf_counter(), machine.cpu_seconds_of(self._process.pid)
        for _ in range(self._steps):
            self.step()
        seconds = time.perf_counter() - began
        used = machine.cpu_seconds_of(self._process.pid) - used
        return seconds / self._steps, used / self._steps

    def step(self) -> None:
        os.write(self._go, b"g")
        self.wait_for_step()

    def end(self) -> None:
        os.close(self._go)
        os.close(self._done)
        self._process.wait()


@contextlib.contextmanager
def _both(options: StepOptions) -> Iterator[tuple[_Run, _Run]]:
    memtide = [sys.executable, "-m", "memtide", "run", "--quiet"]
    with_limit = options.limit_arguments is not None
    first = [*memtide, *(options.limit_arguments or ())] if with_limit else [sys.executable]
    reference = _Run(first, options)
    try:
        reference.wait_for_step()
        under_memtide = _Run([*memtide, *options.memtide_arguments], options)
        try:
            under_memtide.wait_for_step()
            yield reference, under_memtide
        finally:
            under_memtide.end()
    finally:
        reference.end()


def measure(options: StepOptions) -> list[Pair]:
    """Measures pairs of seconds per step, until enough were taken on a quiet machine."""
    return measure_with_cpu(options)[0]


def measure_with_cpu(options: StepOptions) -> tuple[list[Pair], list[Pair]]:
    """As `measure`, with pairs of seconds of CPU time beside them, which has ticks of 10 ms."""
    pairs: list[Pair] = []
    cpu_pairs: list[Pair] = []
    with _both(options) as (reference, under_memtide):
        for _ in range(options.warm_up_steps - 1):
            reference.step()
            under_memtide.step()
        end = time.monotonic() + options.most_seconds
        while len(pairs) < options.most_pairs and (not pairs or time.monotonic() < end):
            load = machine.Load(machine.our_processes())
            if len(pairs) % 2:
                product, limit = under_memtide.sample(), reference.sample()
            else:
                limit, product = reference.sample(), under_memtide.sample()
            others_cpus = load.of_others()
            pairs.append(Pair(limit[0], product[0], others_cpus))
            cpu_pairs.append(Pair(limit[1], product[1], others_cpus))
            if sum(pair.others_cpus < QUIET_CPUS for pair in pairs) == ENOUGH_PAIRS:
                break
    return pairs, cpu_pairs
