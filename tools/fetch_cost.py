#!/usr/bin/env python3
"""Counts what a fetch and its release cost in the engine: instructions, by Valgrind, and no clock.

    tools/fetch_cost.py           prints what they are in the working tree
    tools/fetch_cost.py BASE      and in a commit, which is built if it was not measured before
    tools/fetch_cost.py --files   also the sources of the engine that a fetch passes, with costs

"resident" is a fetch of a chunk that is in its tier; "moving" writes a victim to SSD and reads the
chunk from there. bench/engine_bench.cc is the program; figures of commits are kept in
$MEMTIDE_CACHE/fetch_cost. No machine's speed or load changes a figure.

Runs on Python's standard library alone, and Valgrind.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import scratch_tree
from shell import bazel

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("MEMTIDE_CACHE", "~/.cache/memtide")).expanduser() / "fetch_cost"
PROGRAM = "bench/engine_bench"
# The sources of the program, whose hashes name a figure.
SOURCES = ("base", "bench/engine_bench.cc", "daemon/engine", "daemon/policy")
USES = 1000
WAYS = ("resident", "moving")
POSITION = re.compile(r"[+\-*\d]\S* (\d+)$")
FILE = re.compile(r"(?:fl|fi|fe)=\((\d+)\)(?: (.*))?$")
CALLED = re.compile(r"c(?:fi|fl)=\((\d+)\)(?: (.*))?$")


class Error(Exception):
    """The cost cannot be counted here."""


def instructions_by_file(report):
    """Path -> instructions, of a report of Callgrind's."""
    names, cost = {}, collections.Counter()
    current, is_call = "", False
    for line in report.splitlines():
        if found := FILE.match(line):
            names.setdefault(found.group(1), found.group(2))
            current = names[found.group(1)]
        elif found := CALLED.match(line):
            names.setdefault(found.group(1), found.group(2))
        elif line.startswith("calls="):
            is_call = True  # The next line has what was called.
        elif found := POSITION.match(line):
            if not is_call:
                cost[current] += int(found.group(1))
            is_call = False
    return cost


def costs(root, way, flags):
    """The instructions of one use, by file."""
    status, output = bazel(root, 'bazel_build "$@"', *flags, f"//{PROGRAM.replace('/', ':')}")
    if status != 0:
        raise Error(output)
    binaries = bazel(root, 'bazel_bin "$@"', *flags)[1].strip().splitlines()[-1]
    reports = []
    for uses in (0, USES):
        with tempfile.NamedTemporaryFile() as report:
            moving = ["--moving"] if way == "moving" else []
            done = subprocess.run(
                ["valgrind", "--tool=callgrind", f"--callgrind-out-file={report.name}"]
                + [f"{binaries}/{PROGRAM}", f"--uses={uses}", *moving],
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise Error(done.stderr)
            reports.append(instructions_by_file(Path(report.name).read_text()))
    few, many = reports
    return {path: (many[path] - few[path]) / USES for path in many}


def of_tree(root, flags=("-c", "opt")):
    """Way -> path -> instructions a use."""
    return {way: costs(root, way, flags) for way in WAYS}


def of_commit(commit):
    """Way -> instructions a use."""
    parts = [f"{commit}:{path}" for path in SOURCES]
    hashes = subprocess.check_output(["git", "rev-parse", *parts], cwd=ROOT, text=True).split()
    known = CACHE / "-".join(each[:10] for each in hashes)
    if not known.exists():
        with scratch_tree(ROOT) as tree:
            subprocess.run(["git", "checkout", "--quiet", commit], cwd=tree, check=True)
            remember(known, of_tree(tree))
    return json.loads(known.read_text())


def remember(known, measured):
    CACHE.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps({way: sum(costs.values()) for way, costs in measured.items()}))


def print_files(measured):
    for way, by_file in measured.items():
        passed = {
            path[path.index("daemon/engine/") :]: cost
            for path, cost in by_file.items()
            if "daemon/engine/" in path and path.endswith(".cc") and cost >= 0.5
        }
        print(f"{way}: {len(passed)} sources of the engine")
        for path, cost in sorted(passed.items(), key=lambda item: -item[1]):
            print(f"{cost:9,.0f}  {path}")


def main(arguments):
    files = "--files" in arguments
    bases = [argument for argument in arguments if argument != "--files"]
    if len(bases) > 1 or any(base.startswith("-") for base in bases):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        # Names of sources need the lines of the program.
        measured = of_tree(ROOT, ("-c", "opt", "--copt=-g1") if files else ("-c", "opt"))
        base = of_commit(bases[0]) if bases else {}
    except Error as error:
        print(f"fetch_cost: {error}", file=sys.stderr)
        return 1
    for way, by_file in measured.items():
        before = f", {base[way]:,.0f} in {bases[0]}" if base else ""
        print(f"instructions a {way} fetch and release: {sum(by_file.values()):,.0f}{before}")
    if files:
        print_files(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
