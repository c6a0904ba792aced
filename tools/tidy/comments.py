"""The prose of a source file: its comments and docstrings, as blocks of whole sentences.

A block is one docstring, or neighbouring lines of comments. In Markdown it is a paragraph, a row of
a table or an item of a list, without code. Pure functions of a path and a text.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CXX = (".cc", ".h", ".cu", ".cuh", ".proto")
HASH = (".sh", ".bzl", ".toml", ".yaml", ".yml", ".textproto", ".service", ".cfg", "BUILD")

_CXX_PARTS = re.compile(
    r'R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'"  # not the separator in 1'000
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)
_CXX_MARKS = re.compile(r"^\s*(/\*+|//+|\*+/?)\s?|\*/\s*$")
_HASH_COMMENT = re.compile(r"(?:^|\s)#(?!!)\s?(.*)")
_CODE_SPAN = re.compile(r"`[^`]*`")
_LINK_TARGET = re.compile(r"\]\([^)]*\)")


@dataclass(frozen=True)
class Line:
    number: int
    text: str
    begins_line: bool = True  # False: code stands before the comment.


Block = list[Line]


def blocks(path: str, text: str) -> list[Block]:
    """The blocks of prose in a file; none where its kind is not known."""
    name = path.rsplit("/", 1)[-1]
    if name.endswith(CXX):
        return _joined(_cxx_lines(text))
    if name.endswith(".py"):
        return _docstrings(text) + _joined(_python_lines(text))
    if name.endswith(".md"):
        return _paragraphs(text)
    if name.endswith(HASH) or ("." not in name and text.startswith("#!")):
        return _joined(_hash_lines(text))
    return []


def _joined(lines: Iterable[Line]) -> list[Block]:
    joined: list[Block] = []
    for line in lines:
        if not line.text:
            joined.append([])
        elif joined and joined[-1] and joined[-1][-1].number == line.number - 1:
            # A comment behind code starts a block; its continuation stands on lines of its own.
            if line.begins_line:
                joined[-1].append(line)
            else:
                joined.append([line])
        else:
            joined.append([line])
    return [block for block in joined if block]


def _cxx_lines(text: str) -> Iterator[Line]:
    for match in _CXX_PARTS.finditer(text):
        comment = match.group("comment")
        if comment is None:
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        first = text.count("\n", 0, match.start()) + 1
        alone = not text[start : match.start()].strip()
        for offset, line in enumerate(comment.split("\n")):
            stripped = _CXX_MARKS.sub("", line).strip()
            yield Line(first + offset, _plain(stripped), alone or offset > 0)


def _python_lines(text: str) -> Iterator[Line]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            alone = not token.line[: token.start[1]].strip()
            yield Line(token.start[0], _plain(token.string.lstrip("#").strip()), alone)


def _docstrings(text: str) -> list[Block]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            continue
        if isinstance(first.value.value, str):
            lines = first.value.value.split("\n")
            found += _joined(
                Line(first.lineno + offset, _plain(line.strip()))
                for offset, line in enumerate(lines)
            )
    return found


def _hash_lines(text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):
        match = _HASH_COMMENT.search(line)
        if match:
            yield Line(number, _plain(match.group(1).strip()), not line[: match.start()].strip())


def _paragraphs(text: str) -> list[Block]:
    lines = []
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        elif fenced or line.startswith("    "):
            line = ""
        bare = re.sub(r"^\s*([-*|>#]+|\d+\.)\s+", "", line).strip()
        # An item, a row or a heading starts a block of its own.
        lines.append(Line(number, _plain(bare), bare == line.strip()))
    return _joined(lines)


def _plain(text: str) -> str:
    """Names in code say nothing about the prose around them."""
    return _LINK_TARGET.sub("]", _CODE_SPAN.sub("`", text))
