#!/usr/bin/env python3
"""Checks the rules of texts that no other linter checks: words, names, lines and links.

    tools/prose_test.py          checks the tracked files, prints path:line: rule: message

tools/tidy/rules.py says how a rule is tried, and how one line is excused from it. Runs on Python's
standard library alone.
"""

import re
import sys

from tidy import cxx, faults, links, words
from tidy.rules import ROOT, report, rule, rules_broken_by, tracked_files


@rule(
    "todo",
    bad=("base/a.cc", "// TO" "DO: later\n"),
    good=("base/a.cc", "// TO" "DO(needs cuFile on the CI machine): read directly\n"),
)
def check_todo(file):
    for number, line in enumerate(file.lines, 1):
        if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(\w.{4,}\))", line):
            yield number, "give the reason in parentheses"


@rule(
    "machine-path",
    bad=("docs/a.md", "Run /wo" "rk/main/tools/test\n"),
    good=("docs/a.md", "Run ~/memtide/tools/test or network/home/page\n"),
)
def check_machine_path(file):
    pattern = re.compile(r"(?<![\w.$}~*])/(wo" r"rk|ro" r"ot|ho" r"me)/\w")
    for number, line in enumerate(file.lines, 1):
        if pattern.search(line):
            yield number, "a path of one machine"


@rule(
    "whitespace",
    bad=("docs/a.md", "trailing \n"),
    good=("docs/a.md", "none\n"),
)
def check_whitespace(file):
    for number, line in enumerate(file.lines, 1):
        if line != line.rstrip():
            yield number, "trailing whitespace"
        if file.is_cxx and "\t" in line:
            yield number, "a tab"
    if file.text and not file.text.endswith("\n"):
        yield len(file.lines), "no newline at the end"


MAX_COLUMNS = 100


@rule(
    "columns",
    bad=("notes/a.md", "word " * (MAX_COLUMNS // 5) + "word\n"),
    good=("notes/a.md", "| cell " * MAX_COLUMNS + "|\n```\n" + "-" * MAX_COLUMNS + "-\n```\n"),
)
def check_columns(file):
    """Prose of documents; a row of a table, an address and code cannot be wrapped."""
    fenced = False
    for number, line in enumerate(file.lines if file.path.endswith(".md") else (), 1):
        fenced ^= line.lstrip().startswith("```")
        wrappable = not fenced and " " in line.strip(" -") and not line.lstrip().startswith("|")
        if wrappable and len(line) > MAX_COLUMNS and not words.is_about_words(file.path):
            yield number, f"{len(line)} columns; at most {MAX_COLUMNS}"


@rule(
    "links",
    bad=("notes/a.md", "See [why](../docs/decisions/why.md).\n"),
    good=(
        "docs/a.md",
        "[why](../README.md#use), `tools/te*`, `tools/{demo,test}`, `a/b`, //tools:tidy_test\n",
    ),
)
def check_links(file):
    yield from links.findings(file.path, file.text, ROOT)


_FAULTS = "1 faults: 1 have tests, 0 in part, 0 have none yet.\n"


@rule(
    "faults",
    bad=(faults.PATH, _FAULTS + "| 1 | a | b | `tools/mutants_test.py`: test_of_nothing |\n"),
    good=(
        faults.PATH,
        _FAULTS
        + "| 1 | a | b | `tools/mutants_test.py`: test_a_row_that_is_malformed_is_an_error |\n",
    ),
)
def check_faults(file):
    yield from faults.findings(file.path, file.text, ROOT)


@rule(
    "words",
    bad=("notes/a.md", "Whoever comes first is served.\n"),
    good=("notes/a.md", "The oldest fetch is admitted first.\n"),
)
def check_words(file):
    if not words.is_about_words(file.path):
        yield from words.findings(file.path, file.text)


rule(
    "names-cxx",
    bad=("a/a.cc", "const int asked = 1;\n"),
    good=("a/a.cc", "const int requested = 1;  // The bytes that were asked for.\n"),
)(cxx.grep(r"\b(asked|kept|told|whoever)_?\b", "a variable is named by what it holds"))


@rule(
    "names",
    bad=("notes/a.py", "told = parser.parse_args()\n"),
    good=("notes/a.py", "arguments = parser.parse_args()\n"),
)
def check_names(file):
    if not words.is_about_words(file.path):
        yield from words.names(file.path, file.text)


def check_the_rules():
    """Findings about rules that do not see more examples."""
    yield from words.blind_spots()
    for text in (
        "[use](../README.md#no-such)",
        "`tools/no_such`",
        "`tools/{demo,no_such}`",
        "//tools:no",
    ):
        if not list(links.findings("docs/a.md", text, ROOT)):
            yield f"rule links does not see {text!r}"
    for path in ("daemon/io/a.cc", "base/a_test.cc", "base/cuda/fake/a.cc", "tests/sim/a.h"):
        for text in ("// What waits for a slot.", "// A slot is free. Those\n// of others wait."):
            if "words" not in rules_broken_by(path, text + "\n"):
                yield f"rule words does not see {text!r} in {path}"


def main():
    return report("prose", tracked_files(), list(check_the_rules()))


if __name__ == "__main__":
    sys.exit(main())
