#!/usr/bin/env python3
"""Tries random mutants of daemon/engine: all are in one build, and a number chooses one.

    tools/mutate.py [COUNT] [--seed S]   COUNT mutants (100 if none is given)
    tools/mutate.py --list [COUNT]       prints them, and builds nothing

The seed is printed; without one it is the date. The tests of client/ and of pyclient/ are measured
with 20261128, which was written here before a mutant of either was tried. tools/mutations.py makes
the mutants: it negates conditions, drops operands of && and ||, exchanges comparisons and sums, and
deletes statements. The commit that is checked out is built once in a Git worktree in a temporary
folder, with all mutants. Then the engine's tests run for each of them, and the simulations with
seeds that no golden hash covers, until one fails. A test that takes ten times as long as without a
mutant fails.

One line for each mutant says which test caught it, or that it survived. What tools/equivalent.txt
explains does not count. Exits 0 if at least 95 of 100 others are caught, 1 if not, 2 if nothing
could be tried.

Runs on Python's standard library alone.
"""

import argparse
import concurrent.futures
import datetime
import os
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import mutations
from mutants import scratch_tree
from shell import bazel

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = "tools/equivalent.txt"
CAUGHT_OF_100 = 95
SIMULATIONS = (
    "//tests/sim:sim_test",
    "//tests/sim:rank_test",
    "//tests/sim:common_test",
    "//tests/sim:pipeline_test",
)
# The first seeds of a simulation are compared with hashes of their traces, which see any change of
# behaviour, wanted or not: these seeds are not.
FIRST_SEED = 1_000_001
# What survives the first round of a simulation is tried with more seeds.
ROUNDS = (100, 1000)
# A line of the compiler's that names what does not compile, or what instantiates it.
_COMPILER = re.compile(
    r"(daemon/engine/[\w/]+\.cc):(\d+):\d+: +(?:(?:\w+ )*error|required from here)"
)
# A mutant that allocates without end must not end others.
MOST_BYTES = 6 << 30


def sources(root):
    """The engine's own code. Invariants only tell what is wrong with other code."""
    found = sorted((root / "daemon/engine").rglob("*.cc"))
    kept_out = ("_test.cc", "invariants.cc")
    return [
        str(path.relative_to(root))
        for path in found
        if not path.name.endswith(kept_out) and "testing" not in path.parts
    ]


def equivalents(root):
    """(path, kind, original) -> reason."""
    rows = {}
    for line in (root / EQUIVALENT).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            path, kind, original, reason = line.split(" | ")
            rows[path, kind, original] = reason
    return rows


def key(mutation):
    return mutation.path, mutation.kind, " ".join(mutation.original.split())


def take(pool, chosen, count):
    """Moves mutations from the shuffled pool to `chosen` until that has `count`."""
    while len(chosen) < count and pool:
        candidate = pool.pop()
        if not any(mutations.overlap(candidate, other) for other in chosen):
            chosen.append(candidate)


def write(root, originals, chosen):
    definition = root / mutations.DEFINED_IN
    if not definition.exists():
        definition.write_text(mutations.DEFINITION)
    for path, text in originals.items():
        numbered = [(n, m) for n, m in enumerate(chosen, 1) if m.path == path]
        mutated = mutations.apply(text, numbered) if numbered else text
        if (root / path).read_text() != mutated:
            (root / path).write_text(mutated)


def build(root, originals, pool, chosen, count, targets):
    """Leaves mutations that do not compile out, and takes others instead, until all compile."""
    while True:
        take(pool, chosen, count)
        write(root, originals, chosen)
        status, output = bazel(root, 'bazel_build -c opt "$@"', *targets)
        if status == 0:
            return
        bad = set(_COMPILER.findall(output))
        wrong = [m for m in chosen if any((m.path, str(n)) in bad for n in lines_of(m))]
        if not wrong:
            print(output, file=sys.stderr)
            raise RuntimeError("the mutants do not compile, and no line of one is named")
        for mutation in wrong:
            print(f"does not compile: {mutation}", flush=True)
            chosen.remove(mutation)


def lines_of(mutation):
    return range(mutation.line, mutation.line + mutation.original.count("\n") + 1)


class Tests:
    """The test programs of a tree, which ask MEMTIDE_MUTANT for the mutant."""

    def __init__(self, root, targets):
        self._root = root
        binaries = bazel(root, "bazel_bin -c opt")[1].strip().splitlines()[-1]
        self._programs = [(t, Path(binaries) / t[2:].replace(":", "/")) for t in targets]
        self._times = {}

    def measure(self):
        """Runs all without a mutant: they must pass."""
        for test, program in self._programs:
            for seeds in self._rounds(test):
                start = time.monotonic()
                if not self._passes(program, seeds, 0, timeout=None):
                    raise RuntimeError(f"{test} does not pass without a mutant")
                self._times[test, seeds] = time.monotonic() - start

    def catches(self, number):
        """The test that sees the mutant; empty if none does."""
        rounds = [(s, test, p) for test, p in self._programs for s in self._rounds(test)]
        for seeds, test, program in sorted(rounds, key=lambda each: each[0]):
            timeout = 10 * self._times[test, seeds] + 10
            if not self._passes(program, seeds, number, timeout):
                return test
        return ""

    def _rounds(self, test):
        return ROUNDS if test in SIMULATIONS else (0,)

    def _passes(self, program, seeds, number, timeout):
        environment = {
            **os.environ,
            "MEMTIDE_MUTANT": str(number),
            "MEMTIDE_SIM_FIRST": str(FIRST_SEED),
            "MEMTIDE_SIM_SEEDS": str(seeds),
        }
        try:
            done = subprocess.run(
                [program, "--gtest_brief=1", "--gtest_fail_fast"],
                cwd=self._root,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)),
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def report(chosen, catches, explained, workers):
    """Prints a line for each mutant; whether enough of them were caught."""
    caught = equivalent = 0
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        verdicts = pool.map(catches, range(1, len(chosen) + 1))
        for number, (mutation, test) in enumerate(zip(chosen, verdicts, strict=True), 1):
            reason = explained.get(key(mutation))
            caught += bool(test)
            equivalent += not test and reason is not None
            if not test and reason is None:
                survivors.append(mutation)
            verdict = f"caught by {test}" if test else reason or "SURVIVED"
            print(f"{number:4} {mutation}: {verdict}", flush=True)
    counted = len(chosen) - equivalent
    print(f"{caught} of {counted} caught, {equivalent} are equivalent, {len(survivors)} survived")
    return 100 * caught >= CAUGHT_OF_100 * counted


def main(arguments, root=ROOT):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", nargs="?", type=int, default=100, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"))
    parser.add_argument("--list", action="store_true", help="print the mutants, build nothing")
    options = parser.parse_args(arguments)
    originals = {path: (root / path).read_text() for path in sources(root)}
    pool = [m for path, text in originals.items() for m in mutations.mutations(path, text)]
    random.Random(options.seed).shuffle(pool)
    print(f"seed {options.seed}: {options.count} of {len(pool)} mutants", flush=True)
    chosen: list[mutations.Mutation] = []
    if options.list:
        take(pool, chosen, options.count)
        print(*chosen, sep="\n")
        return 0
    with scratch_tree(root) as tree:
        originals = {path: (tree / path).read_text() for path in originals}
        status, output = bazel(tree, 'bazel_query "$@"', "tests(//daemon/engine/...)")
        if status != 0:
            print(output, file=sys.stderr)
            return 2
        units = [line for line in output.splitlines() if line.startswith("//")]
        targets = [*units, *SIMULATIONS]
        build(tree, originals, pool, chosen, options.count, targets)
        tests = Tests(tree, targets)
        tests.measure()
        workers = int(os.environ.get("MEMTIDE_JOBS", "2"))
        return 0 if report(chosen, tests.catches, equivalents(tree), workers) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
