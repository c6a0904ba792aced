#!/usr/bin/env python3
"""Finds out which test in Python runs which line of pyclient: covering_tests.py FOLDER JSON

Runs the tests of a folder under coverage.py, with the programs that they start, and writes the
seconds of each test that passes, and for each line the numbers of these tests that run it.
Processes that are killed tell nothing. tests/conftest.py tells coverage.py the test of pytest's
process; a program that a test starts reads it in its environment. tools/mutate.py runs this in the
tests' environment.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

import coverage
from shell import command

ROOT = Path(__file__).resolve().parent.parent
_SETTINGS = """[run]
source = {root}/pyclient
data_file = {scratch}/data/coverage
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
disable_warnings = no-data-collected,module-not-imported,module-not-measured,couldnt-parse
"""
_PHASE = re.compile(r" \((?:setup|call|teardown)\)(?:\|.*)?$")


def record(folder, scratch):
    settings = scratch / "coveragerc"
    settings.write_text(_SETTINGS.format(root=ROOT, scratch=scratch))
    (scratch / "data").mkdir()
    script = 'run_pytest "$MEMTIDE_PY" -q -n "${MEMTIDE_JOBS:-2}" "$@"'
    more = ["--dist", "worksteal", f"--junitxml={scratch}/junit.xml", folder]
    subprocess.run(
        command(script, *more),
        cwd=ROOT,
        env={**os.environ, "COVERAGE_PROCESS_START": str(settings)},
        stdout=sys.stderr,
        check=False,  # A test that fails judges nothing.
    )


def seconds_of(junit):
    """Test -> seconds, of those that passed."""
    seconds = {}
    for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
        if not {"failure", "error", "skipped"} & {child.tag for child in case}:
            path = case.attrib["classname"].replace(".", "/")
            seconds[f"{path}.py::{case.attrib['name']}"] = float(case.attrib["time"])
    return seconds


def lines_of(folder):
    """File -> line -> the tests that run it."""
    lines: dict[str, dict[int, set[str]]] = {}
    for path in folder.iterdir():
        data = coverage.CoverageData(basename=str(path))
        data.read()
        for file in data.measured_files():
            of_file = lines.setdefault(str(Path(file).relative_to(ROOT)), {})
            for line, contexts in data.contexts_by_lineno(file).items():
                tests = {_PHASE.sub("", context) for context in contexts if context}
                of_file.setdefault(line, set()).update(tests)
    return lines


def main(folder, out):
    with tempfile.TemporaryDirectory(prefix="covering-") as scratch:
        record(folder, Path(scratch))
        seconds = seconds_of(Path(scratch) / "junit.xml")
        lines = lines_of(Path(scratch) / "data")
    # Tests that judge have numbers, as each runs thousands of lines.
    numbers = {test: number for number, test in enumerate(seconds)}
    numbered = {
        file: {line: sorted(numbers[t] for t in tests & seconds.keys()) for line, tests in of_file}
        for file, of_file in sorted((file, sorted(each.items())) for file, each in lines.items())
    }
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps({"seconds": seconds, "lines": numbered}))


if __name__ == "__main__":
    main(*sys.argv[1:])
