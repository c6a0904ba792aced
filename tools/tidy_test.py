#!/usr/bin/env python3
"""Checks the rules of code that no other linter checks: its size, shape and layers.

    tools/tidy_test.py          checks the tracked files, prints path:line: rule: message

tools/tidy/rules.py says how a rule is tried, and how one line is excused from it. Runs on Python's
standard library alone.
"""

import sys
from pathlib import Path

from structure import THINNEST_CALL, files_of_call, is_program
from tidy import cxx, headers, names, python, structure
from tidy.rules import (
    ROOT,
    File,
    Finding,
    report,
    rule,
    rules_broken_by,
    tracked_files,
    tracked_paths,
)

MAX_LINES = 500
# Path: why it is longer and better so.
LONG_FILES: dict[str, str] = {
    "bench/README.md": "a paragraph for each figure, in the order of the table that is printed",
    "tests/sim/golden_hashes.txt": "one line for ten seeds",
    "tools/mutants.txt": "six lines a mutant",
}
GENERATED_OR_DATA = (".json", ".jsonl", ".csv", ".svg", ".lock")


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


def check_class_sizes(texts):
    """A function may count as a method of a class in another file, so that all are read at once."""
    for path, name, line, methods in structure.classes_of(texts):
        most = MAX_METHODS_OF_ENGINE if path.startswith("daemon/engine/") else MAX_METHODS
        if methods > most:
            yield Finding(path, line, "class-size", f"{name} has {methods} methods; at most {most}")


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

rule(
    "wall-clock",
    bad=("daemon/io/a.cc", "const auto now = std::chrono::system_clock::now();\n"),
    good=("daemon/io/a.cc", "const Instant now = Now();  // No system_clock.\n"),
)(cxx.check_wall_clock)


def check_the_rules():
    """Findings about rules that do not see more examples, or see too much."""
    more_bad = {
        "raw-new": ("delete this;", "delete[] p;", "std::unique_ptr<T> a; T* p = new T;"),
        "locks": ("absl::Mutex mu;", "std::lock_guard<std::mutex> l(m);"),
        "layering": ('#include "client/client.h"', '#include "daemon/flags.h"'),
        "sleep": ("// tidy(sleep): no\nusleep(1);",),
    }
    for name, texts in more_bad.items():
        for text in texts:
            if name not in rules_broken_by("daemon/io/a.cc", text + "\n"):
                yield f"rule {name} does not see {text!r}"
    flow = '#include "daemon/engine/jobs/jobs.h"\n'
    if "engine-layering" not in rules_broken_by("daemon/engine/core.h", flow):
        yield "rule engine-layering does not see a class of a flow in core.h"
    for text, is_bad in (("core.h", True), ("interface/types.h", False), ("calls/calls.h", True)):
        table = rules_broken_by("daemon/engine/tables/a.cc", f'#include "daemon/engine/{text}"\n')
        if ("engine-layering" in table) != is_bad:
            yield f"rule engine-layering is wrong about {text} in a table"
    uses_testing = '#include "client/testing/places.h"\n'
    for path, is_bad in (("client/lease/a.cc", True), ("client/lease/a_test.cc", False)):
        if ("layering" in rules_broken_by(path, uses_testing)) != is_bad:
            yield f"rule layering is wrong about client/testing in {path}"
    parts = "class Dispatcher {\n  Core core_;\n  Calls calls_{core_};\n};\n"
    for folder, name, methods, function, is_bad in (
        ("engine", "A", MAX_METHODS_OF_ENGINE, "", False),
        ("engine", "A", MAX_METHODS_OF_ENGINE + 1, "", True),
        ("device", "A", MAX_METHODS, "", False),
        ("device", "A", MAX_METHODS + 1, "", True),
        ("engine", "Calls", MAX_METHODS_OF_ENGINE, "void F(const Calls& calls) {}\n", True),
        ("engine", "Calls", MAX_METHODS_OF_ENGINE, "void B::F(Calls& calls) {}\n", False),
        ("engine", "Core", MAX_METHODS_OF_ENGINE, "int F(int a, Core* core) {}\n", True),
        ("engine", "Core", MAX_METHODS_OF_ENGINE, "int F(const Core& core) {}\n", False),
    ):
        text = f"class {name} {{\n" + "  void F();\n" * methods + "};\n"
        texts = {"daemon/engine/dispatcher.h": parts, f"daemon/{folder}/a.h": text}
        if bool(list(check_class_sizes({**texts, "daemon/engine/a.cc": function}))) != is_bad:
            yield f"rule class-size is wrong about {methods} methods of {name} and {function!r}"
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


def package_of(path):
    """The folder of the nearest BUILD file above a source."""
    folder = Path(path).parent
    while folder != Path() and not (ROOT / folder / "BUILD").is_file():
        folder = folder.parent
    return str(folder)


def main():
    problems = list(check_the_rules())
    paths = tracked_paths()
    problems += [f"LONG_FILES names {p}, which is gone" for p in LONG_FILES if p not in paths]
    files = tracked_files()
    for file, line, message in names.check_names(files, package_of):
        if file.path.startswith(("base/", "client/", "daemon/", "proto/", "tests/sim/")):
            problems.append(Finding(file.path, line, "anonymous-name", message))
    for path, circle in python.import_circles(files):
        problems.append(Finding(path, 1, "python-circle", circle))
    programs = {file.path: file.text for file in files if is_program(file.path, file.text)}
    problems += check_class_sizes(programs)
    touched = files_of_call(programs, THINNEST_CALL)
    if not 0 < len(touched) <= MAX_FILES_OF_CALL:
        message = f"{THINNEST_CALL} takes {len(touched)} files, not 1 to {MAX_FILES_OF_CALL}"
        problems.append(Finding("proto/verbs.h", 1, "files-of-call", f"{message}: {touched}"))
    return report("tidy", files, problems)


if __name__ == "__main__":
    sys.exit(main())
