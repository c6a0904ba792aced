#!/usr/bin/env python3
"""Tries random mutants of a part of the tree, and counts those that its tests catch.

    tools/mutate.py [COUNT] [--seed S]   COUNT mutants of daemon/engine (100 if none is given)
    tools/mutate.py --of client          of client/; --of pyclient: of the Python package
    tools/mutate.py --list [COUNT]       prints them, and tries nothing
    tools/mutate.py --after N [COUNT]    goes on where a run was broken off after its Nth mutant

The seed is printed; without one it is the date. The tests of client/ and of pyclient/ are measured
with 20261128, which was written here before a mutant of either was tried. tools/mutations.py makes
the mutants of C++, tools/python_mutations.py those of Python: conditions are negated, operands of
"and" and "or" dropped, comparisons and sums exchanged, statements deleted.

The commit that is checked out is in a Git worktree in a temporary folder, once with all mutants,
and a number chooses one. C++ is built there. The tests run for each mutant until one fails: of the
engine its own, those of daemon/replay, which runs it, and the simulations with seeds that no golden
hash covers; of the client its own, then those of tests/integration that use it. A test that takes
ten times as long as without a mutant, or computes for three times as long, fails. Which tests judge
a mutant in Python is said in tools/mutate_python.py.

One line for each mutant says which test caught it, or that it survived. Mutants that
tools/equivalent.txt explains do not count. Exits 0 if at least 95 of 100 others are caught, 1 if
not, 2 if nothing could be tried.

Runs on Python's standard library alone.
"""

import argparse
import concurrent.futures
import datetime
import os
import random
import sys
from pathlib import Path

import mutate_python
import mutations
import one_build
import python_mutations
from mutants import scratch_tree

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = "tools/equivalent.txt"
CAUGHT_OF_100 = 95
FOLDERS = {"engine": "daemon/engine", "client": "client", "pyclient": "pyclient"}
SIMULATIONS = (
    "//tests/sim:sim_test",
    "//tests/sim:rank_test",
    "//tests/sim:common_test",
    "//tests/sim:pipeline_test",
)
# The first seeds of a simulation are compared with hashes of their traces, which see any change of
# behaviour, wanted or not: these seeds are not.
FIRST_SEED = 1_000_001
# A mutant that survives the first round of a simulation is tried with more seeds, as many as let
# 100 mutants be judged in an hour and a half.
ROUNDS = (100, 300)
# Invariants only tell what is wrong with other code, and no CUDA is for machines without.
KEPT_OUT = ("_test.cc", "_benchmark.cc", "invariants.cc", "cuda_none.cc")


def sources(root, of):
    found = sorted((root / FOLDERS[of]).rglob("*.py" if of == "pyclient" else "*.cc"))
    return [
        str(path.relative_to(root))
        for path in found
        if not path.name.endswith(KEPT_OUT) and "testing" not in path.parts
    ]


def pool_of(of, originals):
    """All mutants of the texts by their paths, in no particular order."""
    made = python_mutations.mutations if of == "pyclient" else mutations.mutations
    return [mutation for path, text in originals.items() for mutation in made(path, text)]


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


def rounds_of(root, of):
    """The tests, each with what its environment has more, in the order in which they are tried."""
    if of == "client":
        queries = "tests(//client/...)", "tests(rdeps(//tests/integration/..., //client/...))"
        return [(test, {}) for query in queries for test in one_build.tests_in(root, query)]
    query = "tests(//daemon/engine/... + //daemon/replay/...)"
    rounds = [(test, {}) for test in one_build.tests_in(root, query)]
    for seeds in ROUNDS:
        more = {"MEMTIDE_SIM_FIRST": str(FIRST_SEED), "MEMTIDE_SIM_SEEDS": str(seeds)}
        rounds += [(test, more) for test in SIMULATIONS]
    return rounds


def python_folders(root):
    return [
        f"tests/python/{path.name}"
        for path in sorted((root / "tests/python").iterdir())
        if path.is_dir() and any(path.glob("test_*.py"))
    ]


def judge_of(programs, rounds):
    """A function from the number of a mutant to the test that sees it, empty if none does."""
    for test, environment in rounds:
        if programs.seconds(test, **environment) is None:
            raise one_build.BuildError(f"{test} does not pass without a mutant")

    def catches(number):
        for test, environment in rounds:
            if programs.sees(number, test, **environment):
                return test
        return ""

    return catches


def report(chosen, catches, explained, workers, after=0):
    """Prints a line for each mutant; whether enough of them were caught."""
    caught = equivalent = 0
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        verdicts = pool.map(catches, range(after + 1, len(chosen) + 1))
        judged = zip(chosen[after:], verdicts, strict=True)
        for number, (mutation, test) in enumerate(judged, after + 1):
            reason = explained.get(key(mutation))
            caught += bool(test)
            equivalent += not test and reason is not None
            if not test and reason is None:
                survivors.append(mutation)
            verdict = f"caught by {test}" if test else reason or "SURVIVED"
            print(f"{number:4} {mutation}: {verdict}", flush=True)
    counted = len(chosen) - after - equivalent
    print(f"{caught} of {counted} caught, {equivalent} are equivalent, {len(survivors)} survived")
    return 100 * caught >= CAUGHT_OF_100 * counted


def try_mutants(tree, options, pool, originals):
    """Whether the tests of the tree catch enough of them."""
    chosen: list[mutations.Mutation] = []
    workers = int(os.environ.get("MEMTIDE_JOBS", "2"))
    if options.of == "pyclient":
        mutate_python.write(tree, originals, pool, chosen, options.count)
        catches = mutate_python.judge_of(tree, chosen, options.tests or python_folders(tree))
    else:
        rounds = rounds_of(tree, options.of)
        targets = sorted({test for test, _ in rounds})
        one_build.build(tree, originals, pool, chosen, options.count, targets)
        catches = judge_of(one_build.Programs(tree, targets), rounds)
    return report(chosen, catches, equivalents(tree), workers, options.after)


def main(arguments, root=ROOT):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", nargs="?", type=int, default=100, metavar="COUNT")
    parser.add_argument("--of", choices=FOLDERS, default="engine")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"))
    parser.add_argument("--tests", nargs="+", help="judges of Python (all folders of tests/python)")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="leave out the first N")
    parser.add_argument("--list", action="store_true", help="print the mutants, try nothing")
    options = parser.parse_args(arguments)
    paths = sources(root, options.of)
    pool = pool_of(options.of, {path: (root / path).read_text() for path in paths})
    if options.list:
        chosen: list[mutations.Mutation] = []
        shuffle(pool, options)
        one_build.take(pool, chosen, options.count)
        print(*chosen, sep="\n")
        return 0
    with scratch_tree(root) as tree:
        originals = {path: (tree / path).read_text() for path in sources(tree, options.of)}
        pool = pool_of(options.of, originals)
        shuffle(pool, options)
        try:
            return 0 if try_mutants(tree, options, pool, originals) else 1
        except one_build.BuildError as error:
            print(f"mutate: {error}", file=sys.stderr)
            return 2


def shuffle(pool, options):
    random.Random(options.seed).shuffle(pool)
    print(
        f"seed {options.seed}: {options.count} of {len(pool)} mutants of {options.of}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
