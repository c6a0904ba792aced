#!/usr/bin/env python3
"""Checks the rules of this tree that no other linter checks.

    tools/tidy_test.py          checks the tracked files, prints path:line: rule: message

Each rule stands next to a planted file that breaks it and one that keeps it, and both are tried
first: a rule that has gone blind fails like a broken one.

Where one line must break a line rule, it says so, there or on the line above:

    // tidy(raw-new): gRPC deletes the reactor in OnDone.

Runs on Python's standard library alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from structure import THINNEST_CALL, files_of_call, is_program
from tidy import cxx, faults, headers, links, names, python, structure, words

ROOT = Path(__file__).resolve().parent.parent

MAX_LINES = 500
# Path: why it is longer and better so.
LONG_FILES: dict[str, str] = {
    "bench/README.md": "a paragraph for each figure, in the order of the table that is printed",
    "tests/sim/golden_hashes.txt": "one line for ten seeds",
    "tools/mutants.txt": "six lines a mutant",
}

NOT_TEXT = (".png", ".jpg", ".gz", ".npz", ".pt", ".bin")
GENERATED_OR_DATA = (".json", ".jsonl", ".csv", ".svg", ".lock")
# Files that are verbatim copies of other projects' text.
FOREIGN = ("LICENSE",)


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


@rule(
    "length",
    bad=("base/a.cc", "int x;\n" * (MAX_LINES + 1)),
    good=("base/a.cc", "int x;\n" * MAX_LINES),
)
def check_length(file):
    is_long = len(file.lines) > MAX_LINES and not file.path.endswith(GENERATED_OR_DATA)
    if is_long and file.path not in LONG_FILES:
        yield MAX_LINES + 1, f"{len(file.lines)} lines; split it, or give a reason in LONG_FILES"
    if not is_long and file.path in LONG_FILES:
        yield 1, f"short enough now ({len(file.lines)} lines): take it off LONG_FILES"


# Lines of a function from head to end, a docstring aside, and methods of a class.
MAX_FUNCTION_LINES = 60
MAX_METHODS = 45
MAX_METHODS_OF_ENGINE = 80
MAX_FILES_OF_CALL = 15


@rule(
    "function-length",
    bad=("base/a.cc", "void F() {\n" + "  G();\n" * MAX_FUNCTION_LINES + "}\n"),
    good=("base/a.cc", "void F() {\n" + "  G();\n" * (MAX_FUNCTION_LINES - 2) + "}\n"),
)
def check_function_length(file):
    if is_program(file.path, file.text):
        for name, line, lines in structure.functions(file.path, file.text):
            if lines > MAX_FUNCTION_LINES:
                yield line, f"{name} has {lines} lines; at most {MAX_FUNCTION_LINES}"


@rule(
    "class-size",
    bad=("tools/a.py", "class A:\n" + "    def f(self): pass\n" * (MAX_METHODS + 1)),
    good=("tools/a.py", "class A:\n" + "    def f(self): pass\n" * MAX_METHODS),
)
def check_class_size(file):
    is_engine = file.path.startswith("daemon/engine/")
    most = MAX_METHODS_OF_ENGINE if is_engine else MAX_METHODS
    if is_program(file.path, file.text):
        for name, line, methods in structure.classes(file.path, file.text):
            if methods > most:
                yield line, f"{name} has {methods} methods; at most {most}"


GOOD_HEADER = """// Bytes: an amount of memory.
#ifndef MEMTIDE_BASE_A_H_
#define MEMTIDE_BASE_A_H_
#endif  // MEMTIDE_BASE_A_H_
"""


rule(
    "header-guard",
    bad=("base/a.h", "// Prose that says what it is.\n#pragma once\n"),
    good=("base/a.h", GOOD_HEADER),
)(cxx.check_guard)

rule(
    "header-prose",
    bad=("base/a.h", GOOD_HEADER.partition("\n")[2]),
    good=("base/a.h", GOOD_HEADER),
)(cxx.check_prose)

rule(
    "banned-call",
    bad=("base/a.cc", "void F(char* s) { strcpy(s, t); }\n"),
    good=("base/a.cc", 'void F() { snprintf(s, 4, "strcpy(a)"); }  // not sprintf()\n'),
)(cxx.grep(cxx.BANNED_CALLS, "unbounded, unchecked or not thread-safe"))

rule(
    "sleep",
    bad=("daemon/io/a.cc", "std::this_thread::sleep_for(1s);\n"),
    good=("daemon/io/a.cc", "// tidy(sleep): the backoff of a reconnect.\nsleep_for(delay);\n"),
)(cxx.grep(r"\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor|sleep)\s*\(", "wait for an event"))

rule(
    "raw-new",
    bad=("daemon/io/a.cc", "auto* p = new Thing();\n"),
    good=(
        "daemon/io/a.cc",
        "Thing(const Thing&) = delete;  // a new one\nint renewed = 1;\n"
        "return std::unique_ptr<Thing>(\n    new Thing());  // Its constructor is private.\n",
    ),
)(cxx.check_raw_new)

rule(
    "locks",
    bad=("daemon/io/a.h", "std::mutex mutex_;\n"),
    good=("base/mutex.h", "std::mutex mutex_;\n"),
)(cxx.check_locks)


@rule(
    "todo",
    bad=("base/a.cc", "// TO" "DO: later\n"),
    good=("base/a.cc", "// TO" "DO(needs cuFile on the CI machine): read directly\n"),
)
def check_todo(file):
    for number, line in enumerate(file.lines, 1):
        if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(\w.{4,}\))", line):
            yield number, "give the reason in parentheses"


rule(
    "expensive-header",
    bad=("daemon/io/a.h", "#include <filesystem>\n"),
    good=("daemon/io/a.cc", "#include <filesystem>\n"),
)(headers.check_expensive)

rule(
    "layering",
    bad=("daemon/device/a.cc", '#include "daemon/engine/engine.h"\n'),
    good=("daemon/engine/a.cc", '#include "daemon/policy/policy.h"\n'),
)(cxx.check_layering)

rule(
    "engine-layering",
    bad=("daemon/engine/calls/a.cc", '#include "daemon/engine/jobs/jobs.h"\n'),
    good=("daemon/engine/calls/a.cc", '#include "daemon/engine/memory/memory.h"\n'),
)(cxx.check_engine_layering)

rule(
    "visibility",
    bad=("daemon/io/BUILD", 'package(default_visibility = ["//visibility:public"])\n'),
    good=("daemon/io/BUILD", 'package(default_visibility = ["//visibility:private"])\n'),
)(cxx.check_visibility)

rule(
    "python-houses",
    bad=("pyclient/memtide/_memory/a.py", "from memtide_plan import b\n"),
    good=("pyclient/memtide/_cli/a.py", "from memtide_plan import b\n"),
)(python.check_layering)

rule(
    "python-layering",
    bad=("pyclient/memtide/_memory/a.py", "def f():\n    from memtide._daemon import b\n"),
    good=("pyclient/memtide/_daemon/a.py", "from memtide._memory import b\n"),
)(python.check_layering)

rule(
    "python-public",
    bad=("examples/a.py", "from memtide._daemon import connect\n"),
    good=("examples/a.py", "from memtide.optim import AdamW\nimport memtide.errors\n"),
)(python.check_public)

rule(
    "foreign-attributes",
    bad=("pyclient/memtide/_memory/a.py", "import torch\ntorch.compile = print\n"),
    good=(
        "pyclient/memtide/_memory/a.py",
        "import sys, torch\nsys.argv = []\ndef f(tensor):\n    tensor.data = torch.zeros(1)\n",
    ),
)(python.check_foreign_attributes)

rule(
    "device-types",
    bad=("pyclient/memtide/_memory/a.py", "def f(t):\n    return t.device.type == 'cuda'\n"),
    good=(
        "pyclient/memtide/_memory/a.py",
        '"""cuda: what a comment says."""\n'
        "def f(t):\n    return t.is_cpu or gpu_module(t.device.type)\n",
    ),
)(python.check_device_types)


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


rule(
    "wall-clock",
    bad=("daemon/io/a.cc", "const auto now = std::chrono::system_clock::now();\n"),
    good=("daemon/io/a.cc", "const Instant now = Now();  // No system_clock.\n"),
)(cxx.check_wall_clock)


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


def findings_in(file):
    for each in RULES:
        for number, message in each.check(file):
            if not file.excused(each.name, number):
                yield Finding(file.path, number, each.name, message)


def check_the_rules():
    """Findings about rules that do not see their planted example, or see too much."""
    for each in RULES:
        bad = {finding.rule for finding in findings_in(File(*each.bad))}
        good = {finding.rule for finding in findings_in(File(*each.good))}
        if each.name not in bad:
            yield f"rule {each.name} does not see its planted example"
        if each.name in good:
            yield f"rule {each.name} objects to its good example"
    yield from words.blind_spots()
    for text in (
        "[use](../README.md#no-such)",
        "`tools/no_such`",
        "`tools/{demo,no_such}`",
        "//tools:no",
    ):
        if not list(links.findings("docs/a.md", text, ROOT)):
            yield f"rule links does not see {text!r}"
    more_bad = {
        "raw-new": ("delete this;", "delete[] p;", "std::unique_ptr<T> a; T* p = new T;"),
        "locks": ("absl::Mutex mu;", "std::lock_guard<std::mutex> l(m);"),
        "layering": ('#include "client/client.h"', '#include "daemon/flags.h"'),
        "sleep": ("// tidy(sleep): no\nusleep(1);",),
        "words": ("// What waits for a slot.", "// A slot is free. Those\n// of others are not."),
    }
    shared = File("daemon/engine/core.h", '#include "daemon/engine/jobs/jobs.h"\n')
    if not any(f.rule == "engine-layering" for f in findings_in(shared)):
        yield "rule engine-layering does not see a class of a flow in core.h"
    for text, is_bad in (("core.h", True), ("interface/types.h", False), ("calls/calls.h", True)):
        table = File("daemon/engine/tables/a.cc", f'#include "daemon/engine/{text}"\n')
        if any(f.rule == "engine-layering" for f in findings_in(table)) != is_bad:
            yield f"rule engine-layering is wrong about {text} in a table"
    for name, texts in more_bad.items():
        for text in texts:
            if name not in {f.rule for f in findings_in(File("daemon/io/a.cc", text + "\n"))}:
                yield f"rule {name} does not see {text!r}"
    for path in ("base/a_test.cc", "bench/a.py", "base/cuda/fake/a.cc", "tests/sim/a.h"):
        mark = "#" if path.endswith(".py") else "//"
        opens = File(path, f"{mark} What waits for a slot.\n")
        if not any(finding.rule == "words" for finding in findings_in(opens)):
            yield f"rule words does not see an opening in {path}"
    uses_testing = '#include "client/testing/places.h"\n'
    for path, is_bad in (("client/lease/a.cc", True), ("client/lease/a_test.cc", False)):
        if any(f.rule == "layering" for f in findings_in(File(path, uses_testing))) != is_bad:
            yield f"rule layering is wrong about client/testing in {path}"
    for folder, most in (("engine", MAX_METHODS_OF_ENGINE), ("device", MAX_METHODS)):
        for methods, is_bad in ((most + 1, True), (most, False)):
            text = "class A {\n" + "  void F();\n" * methods + "};\n"
            header = File(f"daemon/{folder}/a.h", text)
            if any(f.rule == "class-size" for f in findings_in(header)) != is_bad:
                yield f"rule class-size is wrong about {methods} methods in {header.path}"
    yield from python.check_the_rules(File)
    clash = "namespace {\nconstexpr int kA = 1;\nvoid F(int a) {}\n}\n"
    for text, is_bad in ((clash, True), (clash.replace("kA", "kB").replace("a)", "b)"), False)):
        files = [File("base/a.cc", clash), File("base/b.cc", text)]
        if bool(list(names.check_names(files, package_of))) != is_bad:
            yield f"names of anonymous namespaces: wrong about {text!r}"
    header = File("base/testing/b.h", "inline constexpr int kA = 1;\n")
    for path, is_bad in (("base/a_test.cc", True), ("base/a.cc", False)):
        if bool(list(names.check_names([File(path, clash), header], package_of))) != is_bad:
            yield f"names of anonymous namespaces: wrong about a constant of a header in {path}"
    if cxx.blank("a(\"//x\", '\"') /* b */ 1'000;") != "a(     ,    )         1'000;":
        yield "cxx.blank() mistakes literals or comments"


def tracked_files():
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


def package_of(path):
    """The folder of the nearest BUILD file above a source."""
    folder = Path(path).parent
    while folder != Path() and not (ROOT / folder / "BUILD").is_file():
        folder = folder.parent
    return str(folder)


def main():
    problems = list(check_the_rules())
    paths = tracked_files()
    problems += [f"LONG_FILES names {p}, which is gone" for p in LONG_FILES if p not in paths]
    files = [
        File(path, (ROOT / path).read_text(encoding="utf-8"))
        for path in paths
        if not path.endswith(NOT_TEXT) and path not in FOREIGN
    ]
    for file in files:
        problems += findings_in(file)
    for file, line, message in names.check_names(files, package_of):
        if file.path.startswith(("base/", "client/", "daemon/", "proto/", "tests/sim/")):
            problems.append(Finding(file.path, line, "anonymous-name", message))
    for path, circle in python.import_circles(files):
        problems.append(Finding(path, 1, "python-circle", circle))
    programs = {file.path: file.text for file in files if is_program(file.path, file.text)}
    touched = files_of_call(programs, THINNEST_CALL)
    if not 0 < len(touched) <= MAX_FILES_OF_CALL:
        taken = f"{THINNEST_CALL} takes {len(touched)} files, not 1 to {MAX_FILES_OF_CALL}"
        problems.append(Finding("proto/verbs.h", 1, "files-of-call", f"{taken}: {touched}"))
    for problem in problems:
        print(problem)
    print(f"tidy: {len(RULES)} rules, {len(files)} files, {len(problems)} findings")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
