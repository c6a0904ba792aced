"""Runs of a script that trains: plainly, or under `memtide run`, and what they say."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_check import facts
from gpu_check.home import Home
from gpu_check.parts import Bench

MIB = 2**20
GIB = 2**30
_SAMPLES_EVERY_MS = 200
WARM_UP_STEPS = 2  # They create the states, compile kernels and fill pools.


@dataclass(frozen=True)
class Job:
    """A script's arguments, and the memory of its states: parameters, gradients, two moments."""

    script: Path
    arguments: tuple[str, ...]
    state_bytes: int
    phases: tuple[str, ...] = ()

    def with_phases(self, *phases: str) -> Job:
        """The same job with the first phases alone."""
        return replace(self, phases=phases)

    def with_more(self, text: str, state_bytes: int | None = None) -> Job:
        """The same job with more arguments, and perhaps with other states."""
        arguments = (*self.arguments, *text.split())
        return replace(self, arguments=arguments, state_bytes=state_bytes or self.state_bytes)

    def command(self, log: Path) -> list[str | Path]:
        """The arguments of python."""
        phases = ["--phases", ",".join(self.phases)] if self.phases else []
        return [self.script, *self.arguments, *phases, "--log", log]


@dataclass(frozen=True)
class Trained:
    """The results of a run: its log, a dict a step; `--stats`, if it was under memtide; and the
    most bytes of the GPU in use while it ran, less those before (0 without a GPU)."""

    steps: list[dict[str, Any]]
    figures: dict[str, Any]
    peak_bytes: int

    def of(self, phase: str) -> list[dict[str, Any]]:
        """The steps of a phase."""
        return [step for step in self.steps if step.get("phase", phase) == phase]

    @property
    def tensor_bytes(self) -> int:
        """The most bytes of the device that torch's allocator has held; 0 where it does not say."""
        return max(int(step.get("reserved_bytes", 0)) for step in self.steps)

    def seconds(self, phase: str) -> float:
        """The median of the steps of a phase, without the first ones."""
        seconds = sorted(step["seconds"] for step in self.of(phase)[WARM_UP_STEPS:])
        if not seconds:
            raise RuntimeError(f"the run has not got beyond the first steps of phase {phase}")
        return float(seconds[len(seconds) // 2])


def gpt(home: Home) -> Job:
    """1.2 B parameters in bfloat16 on a GPU; 5 M parameters in float32 on the fake CUDA. The first
    phase has few tokens in a step, and the last as many as the card has room for."""
    script = Path(__file__).resolve().parent / "trainee.py"
    if home.fake:
        tiny = "--layers 6 --width 256 --context 32 --steps 3 --device fakegpu --dtype float32"
        return Job(script, tuple(tiny.split()), 4 * 4 * 6 * 12 * 256**2, ("2", "2c", "4"))
    full = "--layers 24 --width 2048 --context 1024 --steps 6 --device cuda --dtype bfloat16"
    card = facts.gpu_bytes(home)
    phases = ("4", "4c", "32") if card >= 76 * GIB else ("4", "4c", "16")
    if card < 46 * GIB:
        phases = ("1", "1c", "4")
    return Job(script, tuple(full.split()), 4 * 2 * 24 * 12 * 2048**2, phases)


def plain(bench: Bench, job: Job) -> Trained:
    """The plain run: made once, and read by later parts that compare with it."""
    name = (
        "-".join([job.script.stem, *job.arguments, *job.phases]).replace("/", "_").replace("--", "")
    )
    file = bench.out / "references" / f"{name}.json"
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        return Trained(before["steps"], {}, before["peak_bytes"])
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        with GpuMemory(bench.home) as memory:
            run(bench.home, [sys.executable, *job.command(log)])
        found = Trained(read_log(log), {}, memory.peak)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"steps": found.steps, "peak_bytes": found.peak_bytes}
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return found


def under_memtide(
    bench: Bench,
    job: Job,
    device_pool: int | None,
    flags: tuple[str, ...] = (),
    *,
    tensors_on_cpu: bool = False,
    named: bool = False,
    steps_on_host: bool = False,
) -> Trained:
    """The same script under `memtide run`, with a host pool for all states. `device_pool`: None
    where `flags`, which come last and may name pools, too, limit the device otherwise.
    `tensors_on_cpu`: as the fake CUDA has it without torch's device over it. `named`: as a job of a
    node's daemon, so that steps are in parts, on the host, as `steps_on_host` has them without a
    name; the host pool then has room for their shadow chunks, of all states but gradients."""
    copies = 2.0 if named or steps_on_host else 1.1
    host_pool = int(copies * job.state_bytes) // (2 * MIB) * 2 * MIB + 64 * MIB
    pools = [f"--host-pool={host_pool}"]
    if device_pool is not None:
        pools.append(f"--device-pool={device_pool}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log, stats = scratch / "log", scratch / "stats"
        command: list[str | Path] = [sys.executable, "-m", "memtide", "run", "--quiet"]
        with GpuMemory(bench.home) as memory:
            if named:
                sockets = stack.enter_context(bench.home.daemon(*pools))
                command += [f"--socket-dir={sockets}", "--job=gpu-check"]
            else:
                command += [*pools, "--ssd-pool=0"]
            command += [*flags, *(["--optimizer-on=host"] if steps_on_host else [])]
            run(bench.home, [*command, f"--stats={stats}", *job.command(log)], tensors_on_cpu)
        figures = json.loads(stats.read_text(encoding="utf-8"))
        return Trained(read_log(log), figures, memory.peak)


def read_log(log: Path) -> list[dict[str, Any]]:
    """The entries of a script's log."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def run(home: Home, command: list[str | Path], tensors_on_cpu: bool = False) -> None:
    """Runs a script to its end. RuntimeError: it failed."""
    done = home.run(command, **home.script_environment(tensors_on_cpu))
    if done.returncode != 0:
        words = [str(word) for word in command[1:]]
        raise RuntimeError(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stderr}")


class GpuMemory:
    """Samples the memory in use of the GPU during the block, by a program of the driver that makes
    no context. Without that program, or on the fake CUDA, there is nothing to sample."""

    def __init__(self, home: Home) -> None:
        self._command = [] if home.fake else facts.gpu_question(home, "memory.used")
        self._samples_mib: list[float] = []

    def __enter__(self) -> GpuMemory:
        if self._command:
            self._process = subprocess.Popen(
                [*self._command, f"--loop-ms={_SAMPLES_EVERY_MS}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], facts.LONGEST_ANSWER_S)[0]:
                self._note(self._process.stdout.readline())
            self._thread = threading.Thread(target=self._read)
            self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._command:
            self._process.kill()
            self._process.wait()
            self._thread.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as samples:
            for line in samples:
                self._note(line)

    def _note(self, line: str) -> None:
        if line.strip().isdecimal():
            self._samples_mib.append(float(line))

    @property
    def peak(self) -> int:
        """The most bytes in use, less those of the first sample, which is from before the block."""
        if not self._samples_mib:
            return 0
        return int((max(self._samples_mib) - self._samples_mib[0]) * MIB)
