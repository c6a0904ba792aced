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
stays as it is. Rows of C++ are in one build, where a number chooses one (tools/row_choices.py says
which can be); what survives its test there is judged by the tests of its package, too. The others
are built and tried one by one. Each test must pass without a mutant. One line for each mutant:
caught, survived, or an error where the mutant does not compile. Exits 0 only if all are caught, 1
if not, 2 for a bad row.

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

import mutations
import one_build
import row_choices

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
    return uncaught


def package_of(root, file):
    """The package of Bazel's that the file belongs to."""
    folders = Path(file).parents
    return "//" + next(str(folder) for folder in folders if (root / folder / "BUILD").exists())


def in_one_build(mutants, root):
    """Prints what becomes of the mutants that one build can have. Returns the others, and how many
    of these were not caught."""
    originals = {mutant.file: (root / mutant.file).read_text() for mutant in mutants}
    rows = {}
    for mutant in mutants:
        text = originals[mutant.file]
        choice = row_choices.choice(mutant.file, text, mutant.original, mutant.mutated)
        if choice is None or not mutant.test.startswith("//"):
            continue
        if not any(mutations.overlap(choice, other) for other in rows):
            rows[choice] = mutant
    if not rows:
        return mutants, 0
    chosen = list(rows)
    tests = sorted({mutant.test.partition(" ")[0] for mutant in rows.values()})
    one_build.build(root, originals, [], chosen, len(chosen), tests)
    print(f"{len(chosen)} of {len(mutants)} mutants are in one build", flush=True)
    programs = one_build.Programs(root, tests)
    uncaught = 0
    for number, choice in enumerate(chosen, 1):
        mutant, start = rows[choice], time.monotonic()
        package = f"{package_of(root, mutant.file)}:all"
        verdict, by = judge(programs, number, mutant, package)
        uncaught += verdict != "caught"
        print(f"{verdict:9} {mutant.name} ({by}, {time.monotonic() - start:.0f} s)", flush=True)
    one_build.write(root, originals, [])
    together = {rows[choice].name for choice in chosen}
    return [mutant for mutant in mutants if mutant.name not in together], uncaught


def judge(programs, number, mutant, package):
    """The verdict on a mutant of the one build, and the test that gives it."""
    target, _, chosen = mutant.test.partition(" ")
    if programs.seconds(target, chosen or "*") is None:
        return "error", f"{mutant.test} does not pass without a mutant"
    if programs.sees(number, target, chosen or "*"):
        return "caught", mutant.test
    for other in programs.tests_in(package):
        if programs.seconds(other) is not None and programs.sees(number, other):
            return "caught", f"{other}, but not {mutant.test}"
    return "survived", mutant.test


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
        alone, uncaught = in_one_build(mutants, scratch)
        uncaught += try_mutants(alone, scratch, lambda test, tree: test_fails(test, tree, log))
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
        uncaught = run(mutants, root)
        print(f"{len(mutants) - uncaught} of {len(mutants)} mutants caught")
        return 1 if uncaught else 0
    except (RowError, one_build.BuildError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
