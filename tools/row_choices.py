"""Rows of tools/mutants.txt as mutations that a number chooses at run time (tools/mutations.py).

A row replaces a line. An `if` chooses between whole statements, and `?:` between the expressions in
which the lines differ. The other rows, such as those of declarations, have no choice.
"""

import re

from mutations import Mutation, escaped
from tidy import cxx

_SUFFIXES = (".cc", ".h")
# The text before an expression in its line, and the text after it.
_LEADS = re.compile(
    r"((?:\} else )?if \(|for \([^;]*; |return |: |const [\w:]+ \w+ = |[\w:]+& \w+ = |)"
)
_TAILS = re.compile(r"(?=(\) \{|\)\) \{|; [^;]*\) \{|;|,| &&| \|\|)$)")
# The line begins a statement if it comes after one of these.
_STATEMENT_FOLLOWS = (";", "{", "}", ":")
_DECLARES = re.compile(r"(MEMTIDE_ASSIGN_OR_RETURN\()?(const|constexpr)\b|[\w:]+& \w+ =")


def choice(path: str, text: str, original: str, mutated: str) -> Mutation | None:
    """The row as a mutation of the file's text. None: it has no choice at run time.

    REQUIRES: `original` is a line of the text, but for its indentation.
    """
    if not path.endswith(_SUFFIXES):
        return None
    found = re.search(rf"^ *({re.escape(original)})$", text, re.MULTILINE)
    if found is None:
        return None
    begin, code = found.start(1), cxx.blank(text)
    old, new = (_without_comment(line) for line in (original, mutated))
    before = code[:begin].rstrip()
    if before.endswith(_STATEMENT_FOLLOWS) and _is_statement(old) and _is_statement(new):
        chosen = f"if ({{on}}) {{{{ {escaped(new)} }}}} else {{{{ {escaped(old)} }}}}"
    else:
        chosen = _expression(old, new)
    if chosen is None:
        return None
    line = text.count("\n", 0, begin) + 1
    return Mutation(path, line, "row", begin, begin + len(old), old, chosen)


def _without_comment(line):
    return line[: len(cxx.blank(line).rstrip())]


def _is_statement(line):
    return line.endswith(";") and _is_balanced(line) and not _DECLARES.match(line)


def _is_balanced(code):
    depth = 0
    for letter in cxx.blank(code):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _expression(old, new):
    """A choice where the lines differ in an expression, between what both begin and end with."""
    lead = _LEADS.match(old).group()
    if not new.startswith(lead) or (not lead and _DECLARES.match(old)):
        return None
    for tail in (found.group(1) for found in _TAILS.finditer(old)):
        a, b = (line[len(lead) : len(line) - len(tail)] for line in (old, new))
        if new.endswith(tail) and a and b and _is_balanced(a) and _is_balanced(b):
            cast = "bool" if tail in (" &&", " ||") or tail.endswith("{") else ""
            a, b = f"{cast}({escaped(a)})", f"{cast}({escaped(b)})"
            return f"{escaped(lead)}(({{on}}) ? {b} : {a}){escaped(tail)}"
    return None
