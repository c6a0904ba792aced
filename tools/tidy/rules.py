"""Rules of this tree, the files that they check, and what a test of them does.

Each rule stands next to a planted file that breaks it and one that keeps it, and both are tried
first: a rule that has gone blind fails like a broken one.

Where one line must break a line rule, it says so, there or on the line above:

    // tidy(raw-new): gRPC deletes the reactor in OnDone.
"""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidy import cxx

ROOT = Path(__file__).resolve().parents[2]

_NOT_TEXT = (".png", ".jpg", ".gz", ".npz", ".pt", ".bin")
# Files that are verbatim copies of other projects' text.
_FOREIGN = ("LICENSE",)


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class File:
    """One file: its text, and for C++ the same lines with comments and literals blanked."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.lines = text.split("\n")
        if text.endswith("\n"):
            self.lines.pop()
        self.is_cxx = path.endswith(cxx.SUFFIXES)
        self.code_lines = cxx.blank(text).split("\n") if self.is_cxx else self.lines

    def excused(self, rule, number):
        """Whether line `number` (from 1), or the one above it, gives a reason for breaking rule."""
        reason = re.compile(rf"tidy\({re.escape(rule)}\): \S.{{8,}}")
        return any(reason.search(line) for line in self.lines[max(0, number - 2) : number])


@dataclass(frozen=True)
class Rule:
    name: str
    check: Callable
    bad: tuple[str, str]  # path and text that break the rule
    good: tuple[str, str]


RULES: list[Rule] = []


def rule(name, bad, good):
    """Registers a check: File -> (line, message) pairs."""

    def register(check):
        RULES.append(Rule(name, check, bad, good))
        return check

    return register


def findings_in(file):
    for each in RULES:
        for number, message in each.check(file):
            if not file.excused(each.name, number):
                yield Finding(file.path, number, each.name, message)


def rules_broken_by(path, text):
    """The names of the rules of which a file has findings."""
    return {finding.rule for finding in findings_in(File(path, text))}


def tracked_paths():
    if (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        return [p for p in listing.split("\0") if p and (ROOT / p).is_file()]
    # A source archive.
    found = []
    for folder, folders, inside in os.walk(ROOT):
        folders[:] = [d for d in folders if not d.startswith(("bazel-", "__", ".")) and d != "out"]
        found += [str((Path(folder) / name).relative_to(ROOT)) for name in inside]
    return sorted(found)


def tracked_files():
    return [
        File(path, (ROOT / path).read_text(encoding="utf-8"))
        for path in tracked_paths()
        if not path.endswith(_NOT_TEXT) and path not in _FOREIGN
    ]


def report(name, files, problems):
    """Prints `problems`, and the findings in the files and about the rules themselves; returns the
    exit status."""
    found = [*_blind_spots(), *problems]
    for file in files:
        found += findings_in(file)
    for each in found:
        print(each)
    print(f"{name}: {len(RULES)} rules, {len(files)} files, {len(found)} findings")
    return 1 if found or not files else 0


def _blind_spots():
    """Findings about rules that do not see their planted example, or see too much."""
    for each in RULES:
        if each.name not in rules_broken_by(*each.bad):
            yield f"rule {each.name} does not see its planted example"
        if each.name in rules_broken_by(*each.good):
            yield f"rule {each.name} objects to its good example"
