"""Sizes of a source's classes and functions, its lines of code, and who calls whom in C++.

Pure functions of texts. C++ is read as formatted code: a definition outside of a class begins its
line, and a class's members are indented by two more columns than the class.
"""

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from tidy import cxx

# Class heads, and what a member declaration is not.
_CLASS = re.compile(
    r"^( *)(?:class|struct) (?:\w+\([^)]*\) )?(\w+)(?: final)?(?: : [^{;]*)? ?\{", re.M
)
_NO_METHOD = re.compile(
    r"\s*(using|friend|static_assert|typedef|enum|class|struct|MEMTIDE_\w+|#)\b"
)
# The head of a definition at the beginning of a line, up to its body.
_DEFINITION = re.compile(
    r"^(?:[A-Za-z_][\w:<>,*&\[\] ]*[ *&])?((?:\w+::)*~?\w+)\([^;{}]*\)[^;{}()]*"
    r"(?:: [^;{}]*(?:\{[^{}]*\}[^;{}]*)*)?\{",
    re.M,
)
# A field of Dispatcher, whose type is Core or the class of a flow.
_PARTS = "daemon/engine/dispatcher.h"
_PART = re.compile(r"^  (\w+) \w+_[;{(]", re.M)
_NO_FUNCTION = {"if", "for", "while", "switch", "return", "namespace"}

Sized = tuple[str, int, int]  # A name, its line, and its size.


def classes(path: str, text: str) -> list[Sized]:
    """The classes of a source with the numbers of their methods."""
    if path.endswith(".py"):
        return [
            (node.name, node.lineno, sum(isinstance(each, _FUNCTIONS) for each in node.body))
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef)
        ]
    if not path.endswith(cxx.SUFFIXES):
        return []
    code = cxx.blank(text)
    found = []
    for match in _CLASS.finditer(code):
        end = _closing(code, match.end() - 1)
        line = code.count("\n", 0, match.start(2)) + 1
        found.append((match.group(2), line, len(list(_methods(code[match.end() : end])))))
    return found


def classes_of(texts: dict[str, str]) -> list[tuple[str, str, int, int]]:
    """The classes of sources: path, name, line, and number of methods.

    A free function of the engine that takes a flow's class, or a Core that it may change, counts as
    a method of that class.
    """
    parts = "|".join(_PART.findall(texts.get(_PARTS, ""))) or "$"
    taken = re.compile(rf"(?<!const )\bCore ?[&*]|(?<![:\w])(?!Core\b)({parts}) ?[&*]")
    taking = collections.Counter(
        name or "Core"
        for path, text in texts.items()
        if path.startswith("daemon/engine/") and path.endswith(cxx.SUFFIXES)
        for match in _DEFINITION.finditer(cxx.blank(text))
        if "::" not in match.group(1)
        for name in set(taken.findall(match.string, match.end(1), match.end()))
    )
    return [
        (path, name, line, methods + taking[name] * path.startswith("daemon/engine/"))
        for path, text in texts.items()
        for name, line, methods in classes(path, text)
    ]


def functions(path: str, text: str) -> list[Sized]:
    """The functions of a source with the lines from head to end, docstrings aside."""
    if path.endswith(".py"):
        return [
            (node.name, node.lineno, _lines(node))
            for node in ast.walk(ast.parse(text))
            if isinstance(node, _FUNCTIONS)
        ]
    if not path.endswith(cxx.SUFFIXES):
        return []
    code = cxx.blank(text)
    found = []
    for match in _DEFINITION.finditer(code):
        if match.group(1).split("::")[-1] in _NO_FUNCTION:
            continue
        end = _closing(code, match.end() - 1)
        lines = code.count("\n", match.start(), end) + 1
        found.append((match.group(1), code.count("\n", 0, match.start()) + 1, lines))
    return found


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return lines
    return lines - ((first.end_lineno or first.lineno) - first.lineno + 1)


def _methods(body: str) -> Iterator[str]:
    """The declarations and definitions of methods in a class's body."""
    at = 0
    while at < len(body):
        end = at
        while end < len(body) and body[end] not in ";{":
            end = _closing(body, end) if body[end] == "(" else end + 1
        head = re.sub(r"\b(public|private|protected):|template <[^;{]*?>(?=\s)", "", body[at:end])
        head = re.sub(r"\[\[\w+\]\]|\bMEMTIDE_\w+\([^)]*\)", "", head)
        if end < len(body) and body[end] == "{":
            end = _closing(body, end)
        at = end + 1
        # A member with a default in braces, or of a type with parentheses in its template, is none.
        before = re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "", head).split("=")[0]
        if "(" in before and not _NO_METHOD.match(head):
            yield " ".join(head.split())


def _closing(code: str, at: int) -> int:
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    return len(code)


def code_lines(path: str, text: str) -> int:
    """The lines that are neither blank, nor comment, nor docstring."""
    if path.endswith(".py") or text.startswith("#!/usr/bin/env python3"):
        return len(_python_lines(text))
    if path.endswith((*cxx.SUFFIXES, ".c", ".proto")):
        # The marks of a blanked literal are left, so that its lines count.
        return sum(bool(line.strip()) for line in _without_comments(text).split("\n"))
    return sum(bool(line.strip()) and line.strip()[0] != "#" for line in text.split("\n"))


def _without_comments(text: str) -> str:
    def blanked(match):
        part = match.group()
        return re.sub(r"[^\n]", " ", part) if part.startswith(("//", "/*")) else part

    return cxx.TOKENS.sub(blanked, text)


def _python_lines(text: str) -> set[int]:
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def circle(texts: dict[str, str]) -> list[str]:
    """The largest set of C++ sources of which each calls every other one, directly or not.

    A call is the name of a function that one file alone defines, before a parenthesis.
    """
    defined: dict[str, set[str]] = {}
    blanked = {path: cxx.blank(text) for path, text in texts.items()}
    for path, code in blanked.items():
        for match in _DEFINITION.finditer(code):
            name = match.group(1).split("::")[-1]
            if name not in _NO_FUNCTION:
                defined.setdefault(name, set()).add(path)
    calls = {
        path: {
            next(iter(defined[name]))
            for name in re.findall(r"\b(\w+)\(", code)
            if len(defined.get(name, ())) == 1
        }
        for path, code in blanked.items()
    }
    reached = {path: _reached(path, calls) for path in calls}
    groups = ({q for q in reached[p] if p in reached[q]} | {p} for p in calls)
    return sorted(max(groups, key=len, default=set()))


def _reached(start: str, calls: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left: Iterable[str] = [start]
    while left:
        left = {each for path in left for each in calls[path]} - seen
        seen |= left
    return seen
