"""Mutations of Python: one expression or statement each, found in the syntax tree.

They are those of tools/mutations.py for C++, and as there, a number chooses one at run time. A
process that records writes down each test that runs the line of a mutation.
"""

import ast
from collections.abc import Iterator

from mutations import Mutation

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_SUMS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_FIRST_IMPORT = "from __future__ import annotations"
# In place of a statement.
_NOTHING = "pass"

# The environment's names of the chosen number, and of the file to which processes append a line for
# each mutation that a test runs: its number, and the test as pytest names it.
CHOSEN, RECORD = "MEMTIDE_MUTANT", "MEMTIDE_MUTANTS_RAN"
_MODULE = "chosen_mutant"
DEFINED_IN = f"pyclient/{_MODULE}.py"
DEFINITION = f"""import os

_CHOSEN, _RECORD = int(os.environ.get("{CHOSEN}", "0")), os.environ.get("{RECORD}")
_recorded = set()


def on(number):
    test = os.environ.get("PYTEST_CURRENT_TEST") if _RECORD else None
    if test and (number, test) not in _recorded:
        _recorded.add((number, test))
        file = os.open(_RECORD, os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{{number}} {{test}}\\n".encode())
        os.close(file)
    return number == _CHOSEN
"""


def mutations(path: str, text: str) -> Iterator[Mutation]:
    """All mutations of a file, in no particular order; they may overlap."""
    source = _Source(path, text)
    yield from _of_statements(source, ast.parse(text))


def apply(text: str, chosen: list[tuple[int, Mutation]]) -> str:
    """The text in which a number chooses one of the mutations, which must not overlap.

    REQUIRES: it imports annotations, as all of pyclient that has code does.
    """
    for number, mutation in sorted(chosen, key=lambda pair: -pair[1].begin):
        on = f"{_MODULE}.on({number})"
        original = text[mutation.begin : mutation.end]
        if mutation.mutated == _NOTHING:
            choice = f"if not {on}: {original}"
        else:
            choice = f"(({mutation.mutated}) if {on} else ({original}))"
        text = text[: mutation.begin] + choice + text[mutation.end :]
    # Line numbers stay, and texts with expressions in them have no other quotes.
    return text.replace(_FIRST_IMPORT, f"{_FIRST_IMPORT}; import {_MODULE}", 1) if chosen else text


class _Source:
    """Makes mutations of one file from nodes of its tree."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines()

    def at(self, line: int, column: int) -> int:
        """Columns of the tree count bytes of UTF-8."""
        before = self._lines[line - 1].encode()[:column]
        return self._starts[line - 1] + len(before.decode())

    def range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self.at(node.lineno, node.col_offset)
        return begin, self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self.range(node)
        return self._text[begin:end]

    def make(self, kind: str, node: ast.expr | ast.stmt, mutated: str) -> Mutation:
        begin, end = self.range(node)
        return Mutation(self._path, node.lineno, kind, begin, end, self._text[begin:end], mutated)


def _of_statements(source, node):
    """The mutations below a node. Types and assertions are no behaviour."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert | ast.Import | ast.ImportFrom | ast.AnnAssign | ast.arg):
            if isinstance(child, ast.AnnAssign) and child.value is not None:
                yield from _of_statements(source, ast.Expression(child.value))
            continue
        if isinstance(child, ast.If) and _is_of_types(child.test):
            continue
        if isinstance(child, ast.If | ast.While | ast.IfExp):
            test = child.test
            yield source.make("negate", test, f"(not ({source.text(test)}))")
        elif _may_be_deleted(child):
            yield source.make("delete", child, _NOTHING)
        elif isinstance(child, ast.Return) and _is_flag(child.value):
            yield source.make("flip", child.value, str(not child.value.value))
        yield from _of_expression(source, child)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            children = ast.Module([*child.body, *child.args.defaults], [])
            yield from _of_statements(source, children)
        else:
            yield from _of_statements(source, child)


def _of_expression(source, node):
    if isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        for dropped in node.values:
            rest = [f"({source.text(each)})" for each in node.values if each is not dropped]
            made = source.make("drop", node, f"({word.join(rest)})")
            yield Mutation(
                made.path,
                dropped.lineno,
                "drop",
                made.begin,
                made.end,
                source.text(dropped),
                made.mutated,
            )
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        old, new = _COMPARISONS[type(node.ops[0])]
        a, b = source.text(node.left), source.text(node.comparators[0])
        yield source.make(f"{old} to {new}", node, f"(({a}) {new} ({b}))")
    elif isinstance(node, ast.BinOp) and type(node.op) in _SUMS and not _has_text(node):
        old, new = _SUMS[type(node.op)]
        a, b = source.text(node.left), source.text(node.right)
        yield source.make(f"{old} to {new}", node, f"(({a}) {new} ({b}))")


def _is_of_types(test):
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _may_be_deleted(statement):
    """An assignment to a name is its declaration, and a constant is a docstring, or `...`."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(each, ast.Attribute | ast.Subscript) for each in statement.targets)
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.AugAssign)


def _is_flag(value):
    return isinstance(value, ast.Constant) and isinstance(value.value, bool)


def _has_text(node):
    """Texts and lists are joined, too; what is certainly one has no difference."""
    no_number = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    return any(
        isinstance(each, no_number)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in (node.left, node.right)
    )
