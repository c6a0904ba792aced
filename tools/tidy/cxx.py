"""The rules of tools/tidy_test.py for C++: headers, ownership, locks, and layers of packages.

A file is a rules.File: only its path, text and lines are used.
"""

import re

SUFFIXES = (".cc", ".h", ".cu", ".cuh")

# From design.md section 4: a package includes only itself and what stands below it. The replay
# stands above the engine, which it plays.
LAYERS = (
    "main",
    "config",
    "service",
    "session",
    "settings",
    "recovery",
    "replay",
    "engine",
    "policy",
    "mover",
    "pool",
    "device",
    "io",
    "metrics",
)
# The same for client/. Only tests and benchmarks may include "testing".
CLIENT_LAYERS = ("testing", "abi", "main", "lease", "rpc", "cuda", "memory")
TEST_FILES = ("_test.cc", "_fuzz.cc", "_benchmark.cc")
# The value types in which the engine and its edges talk: open to every package of the daemon.
VOCABULARY = {
    "daemon/engine/interface/copy_work.h",
    "daemon/engine/interface/effects.h",
    "daemon/engine/interface/events.h",
    "daemon/engine/interface/quota.h",
    "daemon/engine/interface/record.h",
    "daemon/engine/interface/types.h",
}

# The engine's folders: one includes itself and those before it. Tables know no class of a flow.
ENGINE_TABLES = ("interface", "tables", "shares", "writes")
ENGINE_ORDER = (
    *ENGINE_TABLES,
    *("memory", "residency", "calls", "sharing", "requests", "records", "commits", "jobs"),
    "inspection",
)
# Files beside the folders which know all of them.
ENGINE_WHOLE = ("audit.h", "audit.cc", "engine.cc", "dispatcher.h")
# The packages that everything may use: the lowest layers, and what is shipped.
PUBLIC_PACKAGES = ("base/", "bazel/", "bench/gpu/", "deploy/", "examples/", "proto/")

BANNED_CALLS = (
    r"\b(strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|atoll|atof|system|popen|tmpnam|rand)\s*\("
)
RAW_NEW = re.compile(r"\bnew\s*\(|\bnew\s+[\w:]|(?<!=)(?<!= )(?<!operator )\bdelete\b(?!\s*;)")

TOKENS = re.compile(
    r'R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'"  # not the separator in 1'000
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)


def blank(text):
    """Comments and the insides of literals become spaces; #include lines and line breaks stay."""

    def blanked(match):
        start = text.rfind("\n", 0, match.start()) + 1
        if text[start : match.start()].lstrip().startswith("#include"):
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return TOKENS.sub(blanked, text)


def grep(pattern, message):
    """A check of single lines of C++, literals and comments aside."""
    compiled = re.compile(pattern)

    def check(file):
        for number, line in enumerate(file.code_lines, 1):
            if file.is_cxx and compiled.search(line):
                yield number, message

    return check


def guard_of(path):
    return "MEMTIDE_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"


def check_guard(file):
    if not file.path.endswith((".h", ".cuh")):
        return
    guard = guard_of(file.path)
    directives = [(n, s) for n, s in enumerate(file.lines, 1) if s.startswith("#")]
    wanted = [f"#ifndef {guard}", f"#define {guard}"]
    opening = [s for _, s in directives[:2]]
    if opening != wanted:
        yield (directives[0][0] if directives else 1), f"the guard must be #ifndef {guard}"
    elif file.lines[-1] not in (f"#endif  // {guard}", f"#endif /* {guard} */"):
        yield len(file.lines), f"the last line must be #endif  // {guard}"


def check_prose(file):
    if file.path.endswith((".h", ".cuh")):
        before = file.text.split("#ifndef")[0].split("#pragma")[0]
        if not re.search(r"(//|/\*|^ \*)\s*\w.{15,}", before, re.MULTILINE):
            yield 1, "say above the guard what it is, who owns what, which threads"


def check_raw_new(file):
    if not file.is_cxx:
        return
    code = "\n".join(file.code_lines)
    for match in RAW_NEW.finditer(code):
        statement = re.split(r"[;{}]", code[: match.start()])[-1]
        # A private constructor is out of make_unique's reach.
        if match.group().startswith("new") and "unique_ptr<" in statement:
            continue
        yield code.count("\n", 0, match.start()) + 1, "ownership is a value or a smart pointer"


def check_wall_clock(file):
    """A wall clock that jumps changes nothing in what is shipped: base/clock.h has the time."""
    pattern = re.compile(
        r"\b(system_clock|gettimeofday|CLOCK_REALTIME|localtime\w*|time\(nullptr\))"
    )
    if not file.path.startswith(("base/", "client/", "daemon/")) or file.path.endswith(TEST_FILES):
        return
    for number, line in enumerate(file.code_lines, 1):
        if file.is_cxx and pattern.search(line):
            yield number, "the wall clock may jump: use base/clock.h"


def check_locks(file):
    if file.path.startswith("base/"):
        return
    pattern = (
        r"absl::(Mutex|CondVar|ReaderMutexLock)\w*"
        r"|std::(\w*mutex|lock_guard|unique_lock|scoped_lock|condition_variable\w*)\b"
    )
    yield from grep(pattern, 'use "base/mutex.h": annotated, and ThreadSanitizer sees it')(file)


def check_layering(file):
    top, _, rest = file.path.partition("/")
    if not file.is_cxx or top not in ("base", "daemon", "client"):
        return
    own = rest.split("/")[0] if "/" in rest else "main"
    layers = {"daemon": LAYERS, "client": CLIENT_LAYERS, "base": (own,)}[top]
    if own not in layers:
        yield 1, f"package {top}/{own} has no place in LAYERS or CLIENT_LAYERS"
        return
    for number, line in enumerate(file.code_lines, 1):
        match = re.match(r'\s*#include "((base|daemon|client)/(\w+)(/?)[^"]*)', line)
        if not match:
            continue
        included, other_top, other, slash = match.groups()
        if other_top != top and other_top != "base":
            yield number, f"{top}/ may not include {other_top}/"
        elif other_top == top != "base" and included not in VOCABULARY:
            other = other if slash else "main"
            if other == "testing" and file.path.endswith(TEST_FILES):
                continue
            if other not in layers or layers.index(other) < layers.index(own):
                yield number, f"{top}/{other} does not stand below {top}/{own}"


def check_engine_layering(file):
    placed = re.match(r"daemon/engine/(?:(\w+)/)?([^/]+)$", file.path)
    if not file.is_cxx or not placed or placed.group(1) == "testing":
        return
    folder, name = placed.groups()
    if folder is None and (name in ENGINE_WHOLE or name.endswith(TEST_FILES)):
        return
    if folder not in (None, *ENGINE_ORDER):
        yield 1, f"daemon/engine/{folder} has no place in ENGINE_ORDER"
        return
    # Files beside the folders are what all classes share.
    below = ENGINE_ORDER[: ENGINE_ORDER.index(folder) + 1] if folder else ENGINE_TABLES
    for number, line in enumerate(file.code_lines, 1):
        match = re.match(r'\s*#include "daemon/engine/(?:(\w+)/)?([^/"]*)"', line)
        if not match or (file.path.endswith(TEST_FILES) and match.group(1) == "testing"):
            continue
        other, header = match.groups()
        is_table = folder in ENGINE_TABLES
        if (is_table or header in ENGINE_WHOLE) if other is None else other not in below:
            yield number, f"daemon/engine/{folder or name} knows only {', '.join(below)}"


def check_visibility(file):
    if not file.path.endswith("BUILD") or file.path.startswith(PUBLIC_PACKAGES):
        return
    for number, line in enumerate(file.lines, 1):
        if re.match(r'package\(.*"//visibility:public"', line):
            yield number, "a package is private, and names who may use what"
