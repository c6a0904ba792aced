"""Tries mutants of the Python package: writes one into the tree at a time, and runs tests.

A mutant is judged by the tests that run its line, the cheapest first, as many as take a minute
together; one that no test runs survives at once. A line that runs at the import of its module is
judged by the tests that run any line of the file. The run that finds out which test runs which line
(tools/covering_tests.py) is kept in the cache folder, for each folder of tests, as long as neither
the tests nor the package change.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import python_mutations
from one_build import BuildError
from shell import bazel, command

# The seconds that the tests of one mutant may take together without it.
MOST_SECONDS = 60
# Exit statuses of pytest: a test failed, tests cannot be imported, their conftest cannot.
_FAILED, _INTERRUPTED, _USAGE = 1, 2, 4
_UNIMPORTED = "ImportError while loading conftest"


def environment_of(tree):
    """Builds what the tests run; the variables that they read."""
    status, output = bazel(tree, "build_for_pytest >/dev/null 2>&1; env -0")
    if status != 0:
        raise BuildError("what the Python tests run cannot be built")
    return dict(each.split("=", 1) for each in output.split("\0") if "=" in each)


def covering(tree, environment, folders):
    """The findings of tools/covering_tests.py for each of the folders."""
    hashes = ["git", "-C", str(tree), "rev-parse", "HEAD:tests", "HEAD:pyclient"]
    done = subprocess.run(hashes, stdout=subprocess.PIPE, text=True, check=True)
    folder_of_hash = Path(environment["MEMTIDE_CACHE"]) / "covering" / "-".join(done.stdout.split())
    found = {"seconds": {}, "lines": {}}
    for folder in folders:
        path = folder_of_hash / (folder.replace("/", "-") + ".json")
        if not path.exists():
            print(f"recording which line runs in {folder}", flush=True)
            recorder = [environment["MEMTIDE_PY"], "tools/covering_tests.py", folder, str(path)]
            subprocess.run(recorder, cwd=tree, env=environment, check=True)
        recorded = json.loads(path.read_text())
        names = list(recorded["seconds"])
        found["seconds"] |= recorded["seconds"]
        for file, lines in recorded["lines"].items():
            of_file = found["lines"].setdefault(file, {})
            for line, tests in lines.items():
                of_file.setdefault(int(line), set()).update(names[number] for number in tests)
    return found


def judges(mutation, text, recorded):
    """The tests that judge the mutant, and what they take together in seconds."""
    lines = recorded["lines"].get(mutation.path, {})
    last = mutation.line + mutation.original.count("\n")
    deferred = python_mutations.is_deferred(text, mutation)
    within = [tests for line, tests in lines.items() if mutation.line <= line <= last]
    covering_it = set().union(*(within if deferred else lines.values()))
    seconds = recorded["seconds"]
    chosen: list[str] = []
    together = 0.0
    for test in sorted(covering_it & seconds.keys(), key=lambda test: (seconds[test], test)):
        if chosen and together + seconds[test] > MOST_SECONDS:
            break
        chosen.append(test)
        together += seconds[test]
    return chosen, together


def run_tests(tree, environment, tests, timeout):
    """The test that fails, or why none could run; empty if all pass."""
    script = 'run_pytest "$MEMTIDE_PY" -q -x --no-header --tb=no "$@"'
    process = subprocess.Popen(
        command(script, *tests),
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "a test that does not end"
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if process.returncode == 0:
        return ""
    if process.returncode in (_FAILED, _INTERRUPTED) and named:
        return named.group(1)
    if process.returncode in (_INTERRUPTED, _USAGE) and _UNIMPORTED in output:
        return "an import"
    raise BuildError(f"pytest ended with {process.returncode}\n{output}")


def judge_of(tree, chosen, originals, folders):
    """A function from the number of a mutant to the test that sees it, empty if none does."""
    environment = environment_of(tree)
    recorded = covering(tree, environment, folders)

    def catches(number):
        mutation = chosen[number - 1]
        text = originals[mutation.path]
        tests, seconds = judges(mutation, text, recorded)
        if not tests:
            print(f"no test runs {mutation.path}:{mutation.line}", flush=True)
            return ""
        path = tree / mutation.path
        path.write_text(python_mutations.apply(text, mutation))
        try:
            return run_tests(tree, environment, tests, 10 * seconds + 60)
        finally:
            path.write_text(text)

    return catches
