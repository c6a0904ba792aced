#!/usr/bin/env python3
"""Adds up what tools/test's stages left in a folder; the last line is "N passed, M failed".

Per stage NAME there is NAME.status (its exit status) and, where it ran tests, NAME.bep.json
(Bazel's build events) or NAME.junit.xml (pytest's). Exits 1 if anything failed.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def bazel_counts(lines):
    """Passed and failed test targets; one that was never built or run counts as failed."""
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
    return len(passed), len(tests - passed - skipped)


def junit_counts(path):
    """Passed and failed pytest tests; a skipped one is neither."""
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))

    def total(name):
        return sum(int(suite.get(name, 0)) for suite in suites)

    failed = total("failures") + total("errors")
    return total("tests") - failed - total("skipped"), failed


def stage_counts(status_file):
    """(passed, failed) of one stage. A stage that failed without a failing test is one failure."""
    passed, failed = 0, 0
    events = status_file.with_suffix(".bep.json")
    if events.exists():
        passed, failed = bazel_counts(events.read_text().splitlines())
    junit = status_file.with_suffix(".junit.xml")
    if junit.exists():
        passed, failed = junit_counts(junit)
    if status_file.read_text().strip() != "0":
        failed = max(failed, 1)
    return passed, failed


def main():
    total_passed, total_failed = 0, 0
    for status_file in sorted(Path(sys.argv[1]).glob("*.status"), key=lambda p: p.stat().st_mtime):
        passed, failed = stage_counts(status_file)
        print(f"{status_file.stem:10} {passed:5} passed {failed:5} failed")
        total_passed += passed
        total_failed += failed
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
