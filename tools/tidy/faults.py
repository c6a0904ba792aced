"""docs/faults.md: each fault has tests, by names that exist, or a reason why it has none.

A row is "| number | fault | promise | tests |", and its last cell a list with "; " between the
items: `file`: names with ", " between them; `file` alone, for a program that is one test; and
"in part:" or "none yet:" with what is missing and why.
"""

import re
from collections.abc import Iterator
from pathlib import Path

PATH = "docs/faults.md"

_ROW = re.compile(r"^\| *(\d+) *\| (.+) \| (.+) \| (.+) \|$")
_ITEM = re.compile(r"^`([\w./-]+)`(?:: (\w+(?:, \w+)*))?$")
_REASON = re.compile(r"^(in part|none yet): \S.{8,}$")
_SUMMARY = re.compile(r"^(\d+) faults: (\d+) have tests, (\d+) in part, (\d+) have none yet\.$")


def findings(path: str, text: str, root: Path) -> Iterator[tuple[int, str]]:
    """The (line, message) pairs of what is wrong with the table."""
    if path != PATH:
        return
    counts = {"": 0, "in part": 0, "none yet": 0}
    summary = None
    for number, line in enumerate(text.split("\n"), 1):
        if found := _SUMMARY.match(line):
            summary = number, [int(each) for each in found.groups()]
        if not re.match(r"^\| *\d", line):
            continue
        row = _ROW.match(line)
        if row is None:
            yield number, "it is no row of four cells"
            continue
        if int(row[1]) != sum(counts.values()) + 1:
            yield number, f"row {row[1]} follows row {sum(counts.values())}"
        lacks = ""
        for item in row[4].split("; "):
            if reason := _REASON.match(item):
                lacks = reason[1]
            else:
                yield from ((number, message) for message in _wrong(item, root))
        counts[lacks] += 1
    expected = [sum(counts.values()), counts[""], counts["in part"], counts["none yet"]]
    if summary is None:
        yield 1, f"the summary is missing: {_summary(expected)}"
    elif summary[1] != expected:
        yield summary[0], f"the rows say: {_summary(expected)}"


def _summary(counts: list[int]) -> str:
    return "{} faults: {} have tests, {} in part, {} have none yet.".format(*counts)


def _wrong(item: str, root: Path) -> Iterator[str]:
    found = _ITEM.match(item)
    if found is None:
        yield f'"{item}" is neither a test nor a reason'
        return
    file = root / found[1]
    if not file.is_file():
        yield f"there is no {found[1]}"
        return
    tests = names(file.read_text(encoding="utf-8"))
    for name in found[2].split(", ") if found[2] else ():
        if name not in tests:
            yield f"{found[1]} has no test {name}"


def names(text: str) -> set[str]:
    """The tests in a file: gtest's, and functions and rules whose name says that they are tests."""
    return {
        *re.findall(r"^TEST(?:_[FP])?\(\s*\w+,\s*(\w+)\s*\)", text, re.MULTILINE),
        *re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE),
    }
