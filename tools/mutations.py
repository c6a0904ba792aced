"""Mutations of C++ that are chosen at run time: a source-to-source pass over formatted code.

Each mutation replaces a part of a line by an expression that asks a number, so that one build has
all mutants and MEMTIDE_MUTANT=N chooses one. No line moves, so that a compiler's errors name the
lines of the original. The pass knows tokens and brackets, and no types: a mutation that does not
compile is left out by its caller.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidy import cxx

# Several files may be one unit of the compiler, so that each declares the number, and the file of
# the lowest layer in DEFINED_IN has it.
PRELUDE = "extern const int g_mutant; "
DEFINED_IN = "base/mutant.cc"
DEFINITION = """#include <cstdlib>

extern const int g_mutant;
const int g_mutant =
    std::getenv("MEMTIDE_MUTANT") == nullptr ? 0 : std::atoi(std::getenv("MEMTIDE_MUTANT"));
"""

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_SUMS = {"+": "-", "-": "+"}
_BINARY = re.compile(
    r" (<=|>=|==|!=|<|>|\+|-|&&|\|\|) (?=\S)|(?<= )(<=|>=|==|!=|<|>|\+|-|&&|\|\|)\n"
)
_OPEN, _CLOSE = "([{", ")]}"
_IF = re.compile(r"\bif \(")
_RETURN = re.compile(r"\breturn (true|false);")
# A call or an assignment. A declaration has a space before the name.
_STATEMENT = re.compile(
    r"[ \n]*((\+\+|--)?\*?[\w.:\[\]]+(->[\w.:\[\]]+)*(\(| (=|\+=|-=|\|=|&=) |;))"
)
_NO_STATEMENT = re.compile(
    r"[ \n]*((MEMTIDE_CHECK|static_assert|return|break|continue|case|default|using|if|for|while|"
    r"switch|else|do|delete|public|private)\b|"
    r"MEMTIDE_ASSIGN_OR_RETURN(?!\([\w.]+,))"  # It declares what the next lines name.
)
_CHECK = re.compile(r"\b(MEMTIDE_CHECK|static_assert)\(")


@dataclass(frozen=True)
class Mutation:
    path: str
    line: int
    kind: str
    begin: int
    end: int
    original: str  # The text from `begin` to `end`.
    # With {on} where the mutant's condition is to be.
    mutated: str

    def __str__(self):
        text = " ".join(self.original.split())
        return f"{self.path}:{self.line}: {self.kind}: {text}"


def mutations(path: str, text: str) -> Iterator[Mutation]:
    """All mutations of a file, in no particular order; they may overlap."""
    code = cxx.blank(text)
    checks = _ranges_of_checks(code)

    def make(kind, begin, end, mutated):
        original = text[begin:end]
        excluded = any(low <= begin < high for low, high in checks)
        if excluded or not original.strip() or "//" in original:
            return
        line = code.count("\n", 0, begin) + 1
        mutated = mutated.replace("\n", " ") + "\n" * original.count("\n")
        yield Mutation(path, line, kind, begin, end, original, mutated)

    for found in _IF.finditer(code):
        begin, end = found.end(), _closing(code, found.end() - 1)
        condition = text[begin:end]
        if not _declares(code[begin:end]):
            yield from make("negate", begin, end, f"({{on}}) != bool({escaped(condition)})")
    for found in _BINARY.finditer(code):
        operator = found.group(1) or found.group(2)
        at = found.start(1) if found.group(1) else found.start(2)
        begin, end = _left(code, at, operator), _right(code, at + len(operator), operator)
        a, b = text[begin:at].strip(), text[at + len(operator) : end].strip()
        if not a or not b or _is_no_operand(code[begin:at]):
            continue
        if operator in ("&&", "||"):
            right = end - len(text[at + len(operator) : end].lstrip())
            drop = "({on}) ||" if operator == "&&" else "!({on}) &&"
            yield from make("drop", right, end, f"({drop} bool({escaped(b)}))")
            yield from make("drop", begin, at - 1, f"({drop} bool({escaped(a)}))")
            continue
        other = _COMPARISONS.get(operator) or _SUMS[operator]
        a, b = escaped(a), escaped(b)
        yield from make(
            f"{operator} to {other}",
            begin,
            end,
            f"(({{on}}) ? ({a}) {other} ({b}) : ({a}) {operator} ({b}))",
        )
    for found in _RETURN.finditer(code):
        value = found.group(1)
        yield from make("flip", found.start(1), found.end(1), f"(({{on}}) != {value})")
    yield from _deletions(code, text, make)


def apply(text: str, chosen: list[tuple[int, Mutation]]) -> str:
    """The text with the numbered mutations, which must not overlap. Keeps all line numbers."""
    for number, mutation in sorted(chosen, key=lambda pair: -pair[1].begin):
        mutated = mutation.mutated.format(on=f"g_mutant == {number}")
        text = text[: mutation.begin] + mutated + text[mutation.end :]
    first = re.compile(r"^(?=(?:namespace|using)\b)", re.MULTILINE)
    return first.sub(lambda _: PRELUDE, text, count=1)


def overlap(a: Mutation, b: Mutation) -> bool:
    return a.path == b.path and a.begin < b.end and b.begin < a.end


def _deletions(code, text, make):
    for found in re.finditer(r"(?<=[;{}])(?= *\n)", code):
        begin = code.index("\n", found.end()) + 1
        match = _STATEMENT.match(code, begin)
        if not match or _NO_STATEMENT.match(code, begin):
            continue
        begin = match.start(1)
        end = _end_of_statement(code, begin)
        if end is None or code[code.rindex("\n", 0, begin) + 1 : begin].count(" ") < 2:
            continue
        yield from make(
            "delete", begin, end, f"if (!({{on}})) {{{{ {escaped(text[begin:end])} }}}}"
        )


def escaped(text):
    return text.replace("{", "{{").replace("}", "}}")


def _declares(condition):
    """Whether the parentheses of an `if` have a declaration or an initialization."""
    return ";" in condition or bool(re.search(r"(?<![=!<>+\-|&])=(?!=)", condition))


def _closing(code, at):
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in _OPEN) - (code[i] in _CLOSE)
        if depth == 0:
            return i
    return len(code)


def _end_of_statement(code, at):
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in _OPEN) - (code[i] in _CLOSE)
        if depth < 0:
            return None
        if depth == 0 and code[i] == ";":
            return i + 1
    return None


def _ranges_of_checks(code):
    """An assertion is no behaviour: its whole statement is left alone."""
    ranges = []
    for found in _CHECK.finditer(code):
        ranges.append((found.start(), _end_of_statement(code, found.start()) or len(code)))
    return ranges


def _boundary(operator):
    """A pattern of what ends an operand: operators that bind less than the operator."""
    weaker = r"[;,?]|(?<!:):(?!:)|\b(?:return|case|else)\b|(?<![=!<>])[+\-|&*/]?=(?!=)"
    if operator != "||":
        weaker += r"|\|\|"
    if operator not in ("||", "&&"):
        weaker += "|&&"
    if operator in _SUMS:
        weaker += r"| (?:<=|>=|==|!=|<|>|<<|>>|[&|^]) "
    elif operator not in ("||", "&&"):
        weaker += r"| [&|^] "
    return re.compile(weaker)


def _left(code, at, operator):
    boundary, depth, begin = _boundary(operator), 0, 0
    for i in range(at - 1, -1, -1):
        depth += (code[i] in _CLOSE) - (code[i] in _OPEN)
        if depth < 0:
            begin = i + 1
            break
    depth, last = 0, begin
    for i in range(begin, at):
        if depth == 0:
            found = boundary.match(code, i, at)
            if found:
                last = found.end()
            elif code[i] == "}":
                last = i + 1
        depth += (code[i] in _OPEN) - (code[i] in _CLOSE)
        if depth == 0 and code[i] == "}":
            last = i + 1
    return last + len(code[last:at]) - len(code[last:at].lstrip())


def _right(code, at, operator):
    boundary, depth = _boundary(operator), 0
    if operator in _SUMS:
        boundary = re.compile(boundary.pattern + r"| [+\-] ")
    elif operator == "&&":
        boundary = re.compile(boundary.pattern + r"|&&")
    elif operator == "||":
        boundary = re.compile(boundary.pattern + r"|\|\|")
    for i in range(at + 1, len(code)):
        if depth == 0 and boundary.match(code, i):
            return i
        depth += (code[i] in _OPEN) - (code[i] in _CLOSE)
        if depth < 0:
            return i
    return len(code)


def _is_no_operand(code):
    """A declaration (`const T& x`), a template's list or an `if` with its condition."""
    return bool(re.match(r"\s*(if|for|while|template|using|const|auto)\b", code))
