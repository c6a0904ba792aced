#!/usr/bin/env python3
"""Shows that the tests bite: breaks one line at a time, and runs the test that must see it.

    tools/mutants.py                 every row of tools/mutants.txt
    tools/mutants.py NAME...         these rows
    tools/mutants.py --check         only whether each row applies; builds nothing

A row is five lines: its name in brackets, then

    file: the path of what is broken
    original: a line of the file, which occurs there once; indentation is left out
    mutated: what stands there instead
    test: a Bazel test target, and which of its tests if not all (GoogleTest's filter); or a path
        under tests/python with arguments for pytest

The commit that is checked out is built in a Git worktree in a temporary folder, so the checkout
stays as it is. Each test must pass there first. Then one line for each mutant: caught, survived, or
an error where the mutant does not compile. Exits 0 only if all are caught, 1 if not, 2 for a bad
row.

Runs on Python's standard library alone.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = "tools/mutants.txt"
KEYS = ("file", "original", "mutated", "test")
# Exit statuses that say that a test ran and failed: Bazel's and pytest's.
BAZEL_TESTS_FAILED, PYTEST_TESTS_FAILED = 3, 1


class RowError(Exception):
    """A row of the table is malformed, or does not apply to the tree."""


@dataclass
class Mutant:
    name: str
    file: str
    original: str
    mutated: str
    test: str


def parse(text):
    """The rows of a table. A line that begins with # is a comment."""
    rows = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            name = line.strip("[]")
            if name in rows:
                raise RowError(f"line {number}: {name} is there twice")
            rows[name] = {}
            continue
        key, _, value = line.partition(": ")
        if not name or key not in KEYS or key in rows[name] or not value:
            raise RowError(f'line {number}: "{line}" is no part of a row')
        rows[name][key] = value
    for name, row in rows.items():
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise RowError(f"{name}: {', '.join(missing)} is missing")
    return [Mutant(name, **row) for name, row in rows.items()]


def mutated_text(mutant, root):
    """The file's text with the mutated line."""
    path = root / mutant.file
    if not path.is_file():
        raise RowError(f"{mutant.name}: there is no {mutant.file}")
    lines = path.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == mutant.original]
    if len(at) != 1:
        raise RowError(f"{mutant.name}: its original line occurs {len(at)} times, not once")
    lines[at[0]] = lines[at[0]].replace(mutant.original, mutant.mutated)
    return "".join(lines)


def test_fails(test, root, log):
    """Whether the test ran and failed; None: it could not be built or run."""
    if test.startswith("//"):
        script, failed = 'source tools/lib.sh; bazel_test -c opt "$@"', BAZEL_TESTS_FAILED
        target, _, chosen = test.partition(" ")
        command = ["bash", "-c", script, "mutants", target, f"--test_filter={chosen}"]
    else:
        command, failed = ["tools/pytest", "-q", "-x", *test.split()], PYTEST_TESTS_FAILED
    status = subprocess.run(command, cwd=root, stdout=log, stderr=log, check=False).returncode
    return {0: False, failed: True}.get(status)


def try_mutants(mutants, root, fails):
    """Prints what becomes of each mutant, and returns how many were not caught."""
    broken = set()
    for test in sorted({mutant.test for mutant in mutants}):
        if fails(test, root) is not False:
            broken.add(test)
            print(f"error     {test} does not pass without a mutant", flush=True)
    uncaught = 0
    for mutant in mutants:
        path = root / mutant.file
        before, start = path.read_text(), time.monotonic()
        path.write_text(mutated_text(mutant, root))
        failed = None if mutant.test in broken else fails(mutant.test, root)
        path.write_text(before)
        verdict = {True: "caught", False: "survived", None: "error"}[failed]
        uncaught += failed is not True
        took = f"{time.monotonic() - start:.0f} s"
        print(f"{verdict:9} {mutant.name} ({mutant.test}, {took})", flush=True)
    print(f"{len(mutants) - uncaught} of {len(mutants)} mutants caught")
    return uncaught


@contextlib.contextmanager
def scratch_tree(root):
    """A Git worktree of the commit that is checked out, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="memtide-mutants-") as folder:
        scratch = Path(folder) / "tree"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(scratch)], check=True)
        try:
            yield scratch
        finally:
            subprocess.run(["bazel", "clean", "--expunge"], cwd=scratch, capture_output=True)
            subprocess.run([*git, "remove", "--force", str(scratch)], check=True)


def in_scratch_copy(mutants, root):
    """Tries the mutants in a worktree of the commit. Its log stays if one is not caught."""
    with (
        scratch_tree(root) as scratch,
        tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log,
    ):
        print(f"log: {log.name}", flush=True)
        uncaught = try_mutants(mutants, scratch, lambda test, tree: test_fails(test, tree, log))
    if not uncaught:
        Path(log.name).unlink()
    return uncaught


def main(arguments, root=ROOT, run=in_scratch_copy):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="build nothing")
    parser.add_argument("names", nargs="*", metavar="NAME")
    wanted = parser.parse_args(arguments)
    try:
        mutants = parse((root / TABLE).read_text())
        unknown = set(wanted.names) - {mutant.name for mutant in mutants}
        if unknown:
            raise RowError(f"{TABLE} has no {', '.join(sorted(unknown))}")
        for mutant in mutants:
            mutated_text(mutant, root)
        if wanted.check:
            return 0
        if wanted.names:
            mutants = [mutant for mutant in mutants if mutant.name in wanted.names]
        return 1 if run(mutants, root) else 0
    except RowError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
