"""Runs programs and optimizers of others plain and under memtide, and writes the table of them.

    bench/programs/compatibility [--only NAME...] [--write FILE]

A row is a program of PROGRAMS, or an optimizer of tests/libraries/optimizers. Exits 0 if all that
run plain have the same losses under memtide, to the last digit or within 1e-5 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import memory
from compatibility_table import Row, are_close, compared, table, write

_ROOT = Path(__file__).resolve().parents[2]
_TRAINERS = Path(__file__).resolve().parent / "trainers"
_OPTIMIZERS = _ROOT / "tests/libraries/optimizers"
sys.path.append(str(_OPTIMIZERS))

from catalogue import LIBRARIES, NOT_TRIED, NOTABLE  # noqa: E402

_MOST_SECONDS = 900.0
_LARGE = ("pytorch_optimizer", "timm")  # Only some of their optimizers have rows of their own.
_LINE = re.compile(r"^(?:(.+): )?loss (\S+)(?: at (\S+))?$", re.MULTILINE)
_CLASS = re.compile(r"^(?:(.+): )?optimizer (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A script that prints losses in trainers/printing.py's form, and what it is run with."""

    name: str
    distribution: str  # Whose version is in the table.
    command: tuple[str, ...]
    host_mib: int  # The host pool: about a quarter of parameters, gradients and states.


_PROGRAMS = (
    Program("TRL SFTTrainer", "trl", ("trl_sft.py",), 20),
    Program("QLoRA: bitsandbytes, PEFT, TRL", "bitsandbytes", ("qlora.py",), 14),
    Program("torchao int8, PEFT", "torchao", ("torchao_int8.py",), 16),
    Program("TRL DPOTrainer", "trl", ("trl_dpo.py",), 20),
    Program("TRL GRPOTrainer", "trl", ("trl_grpo.py",), 20),
    Program("diffusers train_unconditional, EMA", "diffusers", ("diffusers_ema.py",), 24),
    Program("Transformers run_clm", "transformers", ("transformers_run_clm.py",), 20),
    Program("Transformers Whisper", "transformers", ("transformers_whisper_tiny.py",), 24),
    Program("timm train", "timm", ("timm_train.py",), 28),
    Program("torchvision classification", "torchvision", ("torchvision_reference.py",), 40),
    Program(
        "sentence-transformers pairs",
        "sentence-transformers",
        ("sentence_transformers_pairs.py",),
        16,
    ),
    Program("torchtitan Llama 3 debug model", "torchtitan", ("torchtitan_llama3.py",), 32),
)
# Programs and optimizers that do not run without memtide either, and why.
_NOT_RUN = (
    ("torchtune", "its last release, 0.6.1, needs a module that torchao has no more"),
    ("torchtitan's train.py", "sets a GPU as its device; its parts are run, in its order"),
    *((f"pytorch_optimizer {name}", why) for name, why in NOT_TRIED.items()),
    ("timm adahessian, kron", "as those of pytorch_optimizer"),
)


def programs() -> list[Program]:
    """All: those with one optimizer each, torch's optimizers, and those of each library."""
    train = str(_OPTIMIZERS / "train.py")
    found = list(_PROGRAMS)
    for name in LIBRARIES["torch"]():
        found.append(Program(f"torch.optim {name}", "torch", (train, "torch", "320", name), 24))
    for library in LIBRARIES:
        if library != "torch":
            found.append(Program(library, library, (train, library, "128"), 8))
    return found


@dataclass
class Run:
    """The output of one run of one program, by the optimizers that it names ("": it names none)."""

    losses: dict[str, list[str]] = field(default_factory=dict)
    moments: dict[str, list[float]] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)  # The classes that step.
    failure: str = ""
    offloaded_steps: int = 0
    managed_bytes: int = 0

    def step_s(self, name: str) -> float | None:
        """The median of the times between losses, without the first two."""
        moments = self.moments.get(name, [])
        between = [b - a for a, b in zip(moments, moments[1:], strict=False)]
        return statistics.median(between[1:]) if len(between) > 1 else None


def run(program: Program, options: Iterable[str], stats: Path | None = None) -> Run:
    """Runs a program once."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT / "pyclient"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    script, *rest = program.command
    arguments = [*options, str(_TRAINERS / script), *rest]
    with tempfile.TemporaryDirectory(prefix="compatibility.") as folder:
        done = memory.run([sys.executable, *arguments], Path(folder), environment, _MOST_SECONDS)
    found = Run()
    for name, loss, moment in _LINE.findall(done.output):
        found.losses.setdefault(name, []).append(loss)
        if moment:
            found.moments.setdefault(name, []).append(float(moment))
    found.optimizers = dict(_CLASS.findall(done.output))
    if done.status != 0:
        lines = [line for line in done.errors.splitlines() if line.strip()]
        found.failure = f"exit status {done.status}: {lines[-1] if lines else ''}"
    elif stats is not None:
        figures = json.loads(stats.read_text(encoding="utf-8"))
        found.offloaded_steps = figures["offloaded_steps"]
        found.managed_bytes = sum(k["allocated_bytes"] for k in figures["kinds"].values())
    return found


def run_under_memtide(program: Program) -> Run:
    with tempfile.TemporaryDirectory(prefix="compatibility.") as folder:
        stats = Path(folder) / "stats.json"
        options = ["-m", "memtide", "run", "--quiet", "--device=none", f"--stats={stats}"]
        options += [f"--host-pool={program.host_mib}MiB", "--ssd-pool=2GiB"]
        return run(program, [*options, f"--ssd-dir={folder}/ssd"], stats)


def run_both(program: Program) -> Iterator[Row]:
    plain, ours = run(program, []), run_under_memtide(program)
    if not plain.losses:
        yield _failed(program, f"plain: {plain.failure or 'prints no loss'}")
    again = None
    for name, losses in plain.losses.items():
        others = ours.losses.get(name, [])
        if losses != others and again is None:
            again = run(program, [])
        yield Row(
            title(program, name),
            version(program.distribution),
            plain.step_s(name),
            ours.step_s(name),
            compared(losses, others, again.losses.get(name, []) if again else losses, ours.failure),
            stepped_by(program, name, plain.optimizers.get(name, ""), ours),
            are_close(losses, others),
            # The others are programs, not optimizers.
            may_fold=bool(name) and program.distribution in _LARGE and name not in NOTABLE,
        )


def _failed(program: Program, why: str) -> Row:
    return Row(program.name, version(program.distribution), None, None, why, "", False)


def title(program: Program, optimizer: str) -> str:
    """The name of a row."""
    whole = program.distribution == "torch" or not optimizer
    return program.name if whole else f"{program.name} {optimizer}"


def version(distribution: str) -> str:
    return metadata.version(distribution).partition("+")[0]


def apart_by(some: list[str], others: list[str]) -> float | None:
    """The largest difference of two runs' losses, as a part of the largest loss, as some trainers'
    losses are about 0; None: they are not as many."""
    if len(some) != len(others):
        return None
    pairs = list(zip(map(float, some), map(float, others), strict=True))
    largest = max(abs(a) for a, _ in pairs)
    return max(abs(b - a) for a, b in pairs) / largest if largest else 0.0


def stepped_by(program: Program, name: str, kind: str, ours: Run) -> str:
    """The code that makes the step, as memtide's statistics and the optimizer's class say.
    Statistics are of a run: where it had many optimizers, each of a class of torch is run alone."""
    of_torch = kind.startswith("torch.")
    if ours.offloaded_steps and len(ours.losses) > 1:
        if not of_torch:
            return "outside code"
        ours = run_under_memtide(replace(program, command=(*program.command, name)))
    if ours.offloaded_steps:
        return "memtide, in parts"
    if not ours.managed_bytes:
        return "not managed"
    return "torch, in place" if of_torch else "outside code"


def machine() -> str:
    """When and on what the rows were measured."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    sources = ("pyclient", "client", "daemon")
    git = ["git", "log", "-1", "--format=%h", "--", *sources]
    log = subprocess.run(git, cwd=_ROOT, capture_output=True, text=True, check=True)
    where = f"{cpu}, one thread of {os.cpu_count()} CPUs, no device"
    return (
        f"{time.strftime('%Y-%m-%d')}, {where}.\nmemtide at {log.stdout.strip()}, "
        f"Python {platform.python_version()}, torch {version('torch')}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/programs/compatibility", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs whose names begin so")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a document")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for program in programs():
        if arguments.only and not program.name.startswith(tuple(arguments.only)):
            continue
        for row in run_both(program):
            print(f"{row.name}: {row.losses}, {row.stepped_by}, {row.ratio:.1f}x", flush=True)
            rows.append(row)
        if arguments.write is not None:  # Each time: a whole run takes a quarter of an hour.
            write(arguments.write, f"{machine()}\n\n{table(rows, _NOT_RUN)}")
    if arguments.write is None:
        print(f"{machine()}\n\n{table(rows, _NOT_RUN)}")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
