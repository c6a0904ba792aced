"""Tries mutants of the Python package: all stand in one tree, where a number chooses one.

All tests run once, and each process writes down which test runs which mutant's line. The tests of
its line judge a mutant, the cheapest first, as many as take a minute together; one that no test
runs survives at once. A line that runs at the import of its module is judged by the tests whose
programs import it. The record is kept in the cache folder for one list of mutants, as long as
neither the tests nor the package change.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

import one_build
import python_mutations
from shell import bazel, command

# The seconds that the tests of one mutant may take together without it.
MOST_SECONDS = 60
# Exit statuses of pytest: a test failed, tests cannot be imported, their conftest cannot.
_FAILED, _INTERRUPTED, _USAGE = 1, 2, 4
_UNIMPORTED = "ImportError while loading conftest"
_PHASE = re.compile(r" \((?:setup|call|teardown)\)$")


def write(tree, originals, pool, chosen, count):
    """Takes `count` mutants from the pool, and writes the tree in which a number chooses one."""
    one_build.take(pool, chosen, count)
    for path, text in originals.items():
        numbered = [(number, each) for number, each in enumerate(chosen, 1) if each.path == path]
        (tree / path).write_text(python_mutations.apply(text, numbered))
    (tree / python_mutations.DEFINED_IN).write_text(python_mutations.DEFINITION)


def record(tree, chosen, folders):
    """Seconds of each test that passes, and for the number of each mutant the tests that run its
    line.

    REQUIRES: the programs that tests run are built.
    """
    hashes = ["git", "-C", str(tree), "rev-parse", "HEAD:tests", "HEAD:pyclient"]
    done = subprocess.run(hashes, stdout=subprocess.PIPE, text=True, check=True)
    depends_on = "\n".join([done.stdout, *map(str, chosen), *folders]).encode()
    name = hashlib.sha256(depends_on).hexdigest()[:40]
    path = Path(os.environ["MEMTIDE_CACHE"]) / "mutants-of-python" / f"{name}.json"
    if not path.exists():
        print("recording which test runs which mutant's line", flush=True)
        with tempfile.TemporaryDirectory(prefix="mutants-", dir="/tmp") as scratch:
            Path(scratch).chmod(0o755)  # Some tests run programs as other users.
            found = _run_all(tree, folders, Path(scratch))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    recorded = json.loads(path.read_text())
    return recorded["seconds"], {int(n): tests for n, tests in recorded["tests"].items()}


def _run_all(tree, folders, scratch):
    ran, junit = scratch / "ran", scratch / "junit.xml"
    ran.touch()
    ran.chmod(0o666)
    script = 'run_pytest "$MEMTIDE_PY" -q -n "${MEMTIDE_JOBS:-2}" "$@"'
    subprocess.run(
        command(script, "--dist", "worksteal", f"--junitxml={junit}", *folders),
        cwd=tree,
        env={**os.environ, python_mutations.RECORD: str(ran)},
        stdout=sys.stderr,
        check=False,  # A test that fails judges nothing.
    )
    seconds = seconds_of(junit.read_text())
    return {"seconds": seconds, "tests": tests_of(ran.read_text(), seconds)}


def seconds_of(junit):
    """Test -> seconds, of those that passed."""
    seconds = {}
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        if not {"failure", "error", "skipped"} & {child.tag for child in case}:
            path = case.attrib["classname"].replace(".", "/")
            seconds[f"{path}.py::{case.attrib['name']}"] = float(case.attrib["time"])
    return seconds


def tests_of(ran, seconds):
    """Number of a mutant -> the tests that run its line and pass, the cheapest first."""
    tests: dict[int, set[str]] = {}
    for line in ran.splitlines():
        number, _, context = line.partition(" ")
        test = _PHASE.sub("", context)
        if test in seconds:
            tests.setdefault(int(number), set()).add(test)
    return {n: sorted(each, key=lambda test: (seconds[test], test)) for n, each in tests.items()}


def judges(tests, seconds):
    """The first of the tests, which judge a mutant, and what they take together in seconds."""
    chosen: list[str] = []
    together = 0.0
    for test in tests:
        if chosen and together + seconds[test] > MOST_SECONDS:
            break
        chosen.append(test)
        together += seconds[test]
    return chosen, together


def run_tests(tree, number, tests, timeout):
    """The test that fails with the mutant, or why none could run; empty if all pass."""
    script = 'run_pytest "$MEMTIDE_PY" -q -x --no-header --tb=no "$@"'
    process = subprocess.Popen(
        command(script, *tests),
        cwd=tree,
        env={**os.environ, python_mutations.CHOSEN: str(number)},
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
    raise one_build.BuildError(f"pytest ended with {process.returncode}\n{output}")


def judge_of(tree, chosen, folders):
    """A function from the number of a mutant to the test that sees it, empty if none does."""
    status, output = bazel(tree, "build_for_pytest >/dev/null 2>&1; env -0")
    if status != 0:
        raise one_build.BuildError("what the Python tests run cannot be built")
    os.environ.update(each.split("=", 1) for each in output.split("\0") if "=" in each)
    seconds, tests = record(tree, chosen, folders)

    def catches(number):
        of_mutant, together = judges(tests.get(number, []), seconds)
        if not of_mutant:
            print(f"no test runs {chosen[number - 1]}", flush=True)
            return ""
        return run_tests(tree, number, of_mutant, 10 * together + 60)

    return catches
