#!/usr/bin/env python3
"""Adds up the result files of tools/test's stages; the last line is "N passed, M failed".

Before the counts come the slowest tests, and the names of all that failed, as they are far up in a
long log. Beside a stage's counts is how long it took and how long it may
(budgets.txt), so that one that grew is seen.

Per stage NAME there are NAME.status (its exit status), NAME.seconds and, where it ran tests,
NAME.bep.json (Bazel's build events) or NAME.junit.xml (pytest's). Exits 1 if anything failed.

With --prices before the folder, it prints instead what the tests of each stage took, by folder, and
the dearest ones.
"""

import collections
import heapq
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SLOWEST = 25
DEAREST = 50
BUDGETS = Path(__file__).with_name("budgets.txt")


def bazel_results(lines):
    """How many test targets passed, and which failed; what was never built or run has failed."""
    tests, passed, skipped = set(), set(), set()
    for line in lines:
        event = json.loads(line)
        kind, key = next(iter(event["id"].items()))
        if kind == "targetConfigured" and "testSize" in event.get("configured", {}):
            tests.add(key["label"])
        elif kind == "targetCompleted" and event.get("aborted", {}).get("reason") == "SKIPPED":
            skipped.add(key["label"])
        elif kind == "testSummary" and event.get("testSummary", {}).get("overallStatus") in (
            "PASSED",
            "FLAKY",
        ):
            passed.add(key["label"])
    passed &= tests
    return len(passed), sorted(tests - passed - skipped)


def junit_results(path):
    """How many pytest tests passed, and which failed; a skipped one is neither."""
    passed, failed = 0, []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {outcome.tag for outcome in case}
        if outcomes & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" not in outcomes:
            passed += 1
    return passed, failed


def bazel_seconds(lines):
    """(seconds, name) of each test target that ran; those out of Bazel's cache took none."""
    for line in lines:
        event = json.loads(line)
        summary = event.get("testSummary", {})
        if "totalRunDurationMillis" in summary:
            label = event["id"]["testSummary"]["label"]
            yield int(summary["totalRunDurationMillis"]) / 1000, label


def junit_seconds(path):
    """(seconds, name) of each pytest test, its fixtures included."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        yield float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}"


def stage_seconds(status_file):
    """(seconds, name) of each test of one stage."""
    events, junit = (status_file.with_suffix(end) for end in (".bep.json", ".junit.xml"))
    if events.exists():
        yield from bazel_seconds(events.read_text().splitlines())
    if junit.exists():
        yield from junit_seconds(junit)


def stage_results(status_file):
    """(how many passed, which failed) of one stage. One that failed without a failing test has
    failed by itself."""
    passed, failed = 0, []
    events = status_file.with_suffix(".bep.json")
    if events.exists():
        passed, failed = bazel_results(events.read_text().splitlines())
    junit = status_file.with_suffix(".junit.xml")
    if junit.exists():
        passed, failed = junit_results(junit)
    if not failed and status_file.read_text().strip() != "0":
        failed = [f"stage {status_file.stem}"]
    return passed, failed


def budgets(text):
    """stage -> minutes."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {stage: float(minutes) for stage, minutes in rows}


def table(stages, seconds, planned):
    """A line for each stage, in their order, with its budget, then the minutes of all together. An
    arrow marks a stage that took half as long again as planned."""
    lines = []
    for stage, (passed, failed) in stages.items():
        line = f"{stage:11} {passed:5} passed {len(failed):5} failed {seconds[stage] / 60:7.1f} min"
        if stage in planned:
            over = " <- over" if seconds[stage] > 90 * planned[stage] else ""
            line += f" of {planned[stage]:4.1f}{over}"
        lines.append(line)
    together = f"{'together':11} {sum(seconds.values()) / 60:34.1f} min"
    if planned.keys() >= stages.keys():
        together += f" of {sum(planned[stage] for stage in stages):4.1f}"
    return [*lines, together]


def status_files(folder):
    """The status files of all stages, in their order."""
    return sorted(Path(folder).glob("*.status"), key=lambda p: p.stat().st_mtime)


def folder_of(name):
    """The folder of //daemon/pool:slot_pool_test, or of tests.python.cli.test_main::test_x."""
    if name.startswith("//"):
        return name.partition(":")[0]
    parts = name.partition("::")[0].split(".")
    files = (n for n, part in enumerate(parts) if part.startswith("test_"))
    return "/".join(parts[: next(files, -1)])


def prices(folder):
    """The lines of --prices."""
    tests = [(*test, file.stem) for file in status_files(folder) for test in stage_seconds(file)]
    by_folder = collections.Counter()
    count = collections.Counter()
    for took, name, stage in tests:
        by_folder[stage, folder_of(name)] += took
        count[stage, folder_of(name)] += 1
    yield "seconds by folder:"
    for key, took in by_folder.most_common():
        yield f"{took:7.1f} s  {count[key]:4} tests  {key[0]}: {key[1]}"
    yield f"the {DEAREST} dearest tests:"
    for took, name, stage in heapq.nlargest(DEAREST, tests):
        yield f"{took:7.1f} s  {stage}: {name}"


def main():
    if sys.argv[1] == "--prices":
        print(*prices(sys.argv[2]), sep="\n")
        return 0
    stages, seconds, tests = {}, {}, []
    for status_file in status_files(sys.argv[1]):
        stages[status_file.stem] = stage_results(status_file)
        seconds[status_file.stem] = int(status_file.with_suffix(".seconds").read_text())
        tests += [(*test, status_file.stem) for test in stage_seconds(status_file)]
    print("the slowest tests:")
    for took, name, stage in heapq.nlargest(SLOWEST, tests):
        print(f"{took:7.1f} s  {stage}: {name}")
    for stage, (_, failed) in stages.items():
        for name in failed:
            print(f"failed in {stage}: {name}")
    print(*table(stages, seconds, budgets(BUDGETS.read_text())), sep="\n")
    total_passed = sum(passed for passed, _ in stages.values())
    total_failed = sum(len(failed) for _, failed in stages.values())
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
