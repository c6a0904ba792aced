"""Trains programs that were not written for memtide in a quarter of their memory.

    bench/programs/programs [--only NAME...] [--checkouts DIR] [--in-cgroup] [--ranks N]
                            [--json FILE]

Each runs plain, which shows its peak, then under `memtide run` with a budget of what
`import torch` takes and a quarter of what the peak has above that. With --in-cgroup the budget is
the limit of a memory cgroup, and `memtide run` has no flag that says so: what exceeds it is killed.
With --ranks, torchrun starts N ranks of the program in such a cgroup, with the node's daemon and
its pool outside of it, both in that budget.
Exits 0 if all that ran trained within their budgets, with plain torch's losses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import memory
from limited_cgroup import ENTER, NoCgroup, limited_cgroup
from programs import PROGRAMS, Program
from results import Result, apart_by, verdict
from rich.console import Console
from stepping_script import node_daemon
from table import show

_ROOT = Path(__file__).resolve().parents[2]
_QUARTER = 4  # The budget's part of what the peak has above `import torch`.
_POOL_OF_NODE = 4  # The node's pool's part of that; the rest is the cgroup's.
_MOST_SECONDS = 1800.0
_PLAIN_REPEATS = 2
# The thresholds that memtide._util.heap sets, as glibc's variables.
_ALLOCATOR_UNDER_A_BUDGET = {
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**10),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**10),
}


class Runner:
    """Runs programs one after another in folders of their own."""

    def __init__(
        self, checkouts: Path | None, scratch: Path, *, in_cgroup: bool, ranks: int
    ) -> None:
        self._checkouts = checkouts
        self._in_cgroup = in_cgroup
        self._ranks = ranks
        self._launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        self._scratch = scratch
        self._environment = {
            **os.environ,
            # minGPT's script imports from the folder that it is started in.
            "PYTHONPATH": os.pathsep.join((str(_ROOT / "pyclient"), ".")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._import_bytes: int | None = None

    def import_bytes(self) -> int:
        """The peak of a process that imports torch."""
        if self._import_bytes is None:
            folder = self._scratch / "import"
            folder.mkdir()
            self._import_bytes = self._run(["-c", "import torch"], folder).peak_bytes
        return self._import_bytes

    def _base_bytes(self) -> int:
        """The launcher imports torch, too."""
        return self.import_bytes() * (1 if self._ranks == 1 else self._ranks + 1)

    def result(self, program: Program) -> Result:
        result = Result(program.name, program.kind)
        where = program.checkout
        if where and (self._checkouts is None or not where.path(self._checkouts).is_dir()):
            result.was_run = False
            result.failure = f"no checkout of {where.repository}"
            return result
        plain = self._run([*self._launch(), *program.arguments], self._folder(program))
        result.plain_peak_bytes, result.plain_seconds = plain.peak_bytes, plain.seconds
        result.plain_losses = self._losses(program, plain)
        result.failure = failure_of(plain, "plain")
        if result.failure:
            return result
        base_bytes = self._base_bytes()
        result.budget_bytes = base_bytes + (plain.peak_bytes - base_bytes) // _QUARTER
        self._train_in_budget(program, result)
        return result

    def _train_in_budget(self, program: Program, result: Result) -> None:
        folder = self._folder(program)
        stats = folder / "stats.json"
        # Without the summary, the last line of a run that fails says why.
        arguments = ["-m", "memtide", "run", "--quiet", f"--stats={stats}"]
        arguments += [f"--ssd-dir={folder / 'ssd'}"]
        budget_bytes = result.budget_bytes or 0
        with contextlib.ExitStack() as stack:
            if self._ranks > 1:
                pool_bytes = (budget_bytes - self._base_bytes()) // _POOL_OF_NODE
                node = stack.enter_context(
                    node_daemon(folder / "ssd", host_pool=f"{pool_bytes >> 20}MiB", ssd_pool="8GiB")
                )
                budget_bytes -= pool_bytes
                arguments = ["-m", "memtide", "run", f"--socket-dir={node}"]
            if self._in_cgroup:
                group = stack.enter_context(limited_cgroup(budget_bytes))
                arguments = ["-c", ENTER, str(group.path), *arguments]
            else:
                arguments += ["--device=none", f"--host-memory={budget_bytes}"]
            ours = self._run([*arguments, *self._launch(), *program.arguments], folder)
        result.measured_bytes, result.seconds = ours.peak_bytes, ours.seconds
        result.losses = self._losses(program, ours)
        if stats.exists():
            budget = json.loads(stats.read_text(encoding="utf-8")).get("budget", {})
            result.most_used_bytes = budget.get("host_most_used_bytes")
            result.activations = budget.get("activations", {})
        result.failure = failure_of(ours, "under memtide")
        if not result.failure and result.losses != result.plain_losses:
            self._repeat_plain(program, result)
        result.failure = result.failure or verdict(result)

    def _repeat_plain(self, program: Program, result: Result) -> None:
        """Finds out how far plain runs are apart whose allocator returns memory as under a budget:
        some kernels round otherwise at other addresses."""
        for _ in range(_PLAIN_REPEATS):
            folder = self._folder(program)
            arguments = [*self._launch(), *program.arguments]
            again = self._run(arguments, folder, _ALLOCATOR_UNDER_A_BUDGET)
            apart = apart_by(result.plain_losses, self._losses(program, again))
            result.plain_apart = max(result.plain_apart, apart or 0.0)

    def _launch(self) -> list[str]:
        return self._launcher if self._ranks > 1 else []

    def _losses(self, program: Program, run: memory.Run) -> list[str]:
        # Some log to standard error. Ranks print in any order.
        found = re.findall(program.losses, run.output + run.errors, re.MULTILINE)
        return sorted(found) if self._ranks > 1 else found

    def _folder(self, program: Program) -> Path:
        """A new folder with the program's data, and with its checkout, if it has one."""
        folder = Path(tempfile.mkdtemp(prefix=f"{program.name}.", dir=self._scratch))
        if program.checkout and self._checkouts:
            source = program.checkout.path(self._checkouts)
            without = shutil.ignore_patterns(".git")
            shutil.copytree(source, folder, ignore=without, dirs_exist_ok=True)
        program.prepare(folder)
        return folder

    def _run(
        self, arguments: list[str], folder: Path, more: Mapping[str, str] | None = None
    ) -> memory.Run:
        command = [sys.executable, *arguments]
        environment = {**self._environment, **(more or {})}
        is_launcher = self._ranks > 1
        return memory.run(command, folder, environment, _MOST_SECONDS, is_launcher=is_launcher)


def failure_of(run: memory.Run, how: str) -> str:
    if run.status is None:
        return f"{how}: took more than {_MOST_SECONDS:.0f} s"
    if run.status:
        lines = [line for line in run.errors.splitlines() if line.strip()]
        return f"{how}: exit status {run.status}: {lines[-1] if lines else ''}"
    return ""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/programs/programs", description=__doc__)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--checkouts",
        type=Path,
        metavar="DIR",
        help="a folder with clones of public repositories, named OWNER+NAME",
    )
    parser.add_argument(
        "--in-cgroup", action="store_true", help="the budget is a cgroup's limit, without a flag"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks in a cgroup")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here too")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    results = []
    with tempfile.TemporaryDirectory(prefix="programs.") as scratch:
        in_cgroup = arguments.in_cgroup or arguments.ranks > 1
        runner = Runner(
            arguments.checkouts, Path(scratch), in_cgroup=in_cgroup, ranks=arguments.ranks
        )
        for program in PROGRAMS:
            if program.name in arguments.only:
                try:
                    result = runner.result(program)
                except NoCgroup as reason:
                    console.print(f"--in-cgroup: {reason}", markup=False)
                    return 2
                console.print(f"{program.name}: {result.failure or 'passed'}", markup=False)
                results.append(result)
        show(results, runner.import_bytes(), console)
    if arguments.json is not None:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(result.passed or not result.was_run for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
