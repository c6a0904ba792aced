"""Plain English in comments, docstrings and documents: what a machine can hold of it.

A comment is a full sentence whose subject is a type or a variable in scope, in the words of
docs/glossary.md. No pattern can check all of that, but these it can: dangling genitives ("Of the
moving: ..."), words for people that stand for things, and variables named by a participle. In
sources, moreover, no sentence opens with a word that stands for a noun ("What waits: ...").

    python3 tools/tidy/words.py PATH...   what is to be rewritten there
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __package__:
    from tidy.comments import Block, Line, blocks
else:
    from comments import Block, Line, blocks

# The rules themselves, and what shows them their examples.
ABOUT_WORDS = ("tools/tidy/", "tools/prose_test.py")

# At the beginning of a sentence.
_OPENINGS = {
    r"Of (?!course\b)": 'a sentence does not begin with "Of": name its subject',
    r"Who\b(?!\b[^.;]*\?)": 'a sentence does not begin with "Who": name the type or the process',
    r"Whom?ever\b": "name the type or the process",
}
# Anywhere.
_WORDS = {
    r"whom?ever": "name the type or the process",
    r"nobody(?:'s|\u2019s)?": 'say what there is none of: "no session", "unused"',
    r"affairs?": "say whose task, decision or setting it is",
    r"likewise": "repeat the verb, or say how the two are alike",
    r"so many(?! that)": "name the number",
    r"told": "set, sent, reported, passed",
    r"(?:for|to|by|of|with|from|behind|beside|than|as) who": "name the type or the process",
    r"(?:by|of) chances?": "stochastic",
    r"(?:comes?|came|coming|brought|brings?|bringing|moved?|moving) ahead": "prefetch",
    r"asked back": "revoked",
    r"gives? way|gave way|giving way": "balloon: inflate, release",
    r"foreseen?|foresees|foresight|foreseeing": "predict; AccessPredictor",
    r"twins?": 'shadow chunk; of a fake, "counterpart"',
}
_SENTENCE = r"(?:(?<=^)|(?<=[.;:!?] )|(?<=[.;:!?]  ))"
# A sentence of a source has a noun there.
NO_NOUN = re.compile(_SENTENCE + r"(?:What|That|Those)\b")
_NOUN_RULES = [(NO_NOUN, "a sentence begins with a noun: name the type or the variable")]
_RULES = [
    *((re.compile(_SENTENCE + p), m) for p, m in _OPENINGS.items()),
    *((re.compile(rf"(?<![\w-]){p}(?![\w-])", re.I), m) for p, m in _WORDS.items()),
]

# A variable is named by what it holds, not by what was done to it.
_NOT_NAMES = {"told", "asked", "kept", "said", "heard", "mine", "taken", "given", "whoever"}


# Planted examples: each of BAD is seen, none of GOOD is.
BAD = (
    ("a.cc", "// Of the moving: will be held.\nint x;\n"),
    ("a.cc", "int x;  // Of chances; 0: to nearest.\n"),
    ("a.cc", "// The slots are taken. Who opens comes\n// first.\n"),
    ("a.h", "/* Slots are lent, to\n * whoever asks. */\n"),
    ("a.proto", "string name = 1;  // Nobody's, if empty.\n"),
    ("a.sh", "echo ok\n# This is the caller's affair.\n"),
    ("a.py", 'def f():\n    """Likewise for reads."""\n'),
    ("a.py", "x = 1  # So many chunks are leased.\n"),
    ("a.py", "# The daemon was\n# told before.\n"),
    ("a.py", "# The next chunk is for who waits.\n"),
    ("a.py", '"""Rounds by chance."""\n'),
    ("a.md", "- What comes ahead of its use.\n"),
    ("a.md", "| leases | asked back |\n"),
    ("a.md", "Text.\n\nThe pool gives\nway.\n"),
    ("a.cc", "// What waits for a slot.\nint x;\n"),
    ("a_test.cc", "int x;  // Those of the job.\n"),
    ("testing/a.h", "// The pool is full. That\n// is no error.\n"),
    ("a.proto", "// The order counts: What is first is evicted.\n"),
    ("tests/test_a.py", 'def f():\n    """A call waits. What comes next does not."""\n'),
    ("a.py", "x = 1  # That which waits.\n"),
    ("BUILD", "# What the tests share.\n"),
)
GOOD = (
    ("a.cc", "// A chunk of the job.\n// Of course it is pinned. A copy\n// of it is valid.\n"),
    ("a.cc", 'Log("told by whoever");  // A literal is no comment.\n'),
    ("a.py", "def f():\n    return 'nobody'  # The user that owns nothing.\n"),
    ("a.py", "# So many that they do not fit.\n"),
    ("a.sh", 'echo "${x#Of }" # Removes the prefix.\n'),
    ("a.md", "Run `told`.\n\n```\nOf the moving\n```\n\n    whoever\n"),
    ("a.md", "## Who may evict a chunk? See [the page](twins.md).\n"),
    ("a.cc", "// A chunk says what it holds, and\n// those that wait go on. Whatever.\n"),
    ("a.cc", 'Log("What waits");\n'),
    ("a.py", 'def f():\n    return "That is all."  # The reply that users see.\n'),
    ("a.md", "What waits is listed.\n"),
)
BAD_NAMES = (
    "told = 1\n",
    "def f(kept): pass\n",
    "self._asked = 1\n",
    "for said in x: pass\n",
    "with f() as taken: pass\n",
)
GOOD_NAMES = ("kept_bytes = told.size\n", "x.kept()\n", "def said(): pass\n")


def blind_spots() -> Iterator[str]:
    """The faults of the rules of this file, by their planted examples."""
    for path, text in BAD:
        if not list(findings(path, text)):
            yield f"the words of {text!r} are not seen in {path}"
    for path, text in GOOD:
        for _, message in findings(path, text):
            yield f"the words of {text!r} are objected to in {path}: {message}"
    for text in BAD_NAMES:
        if not list(names("a.py", text)):
            yield f"the name in {text!r} is not seen"
    for text in GOOD_NAMES:
        if list(names("a.py", text)):
            yield f"the names in {text!r} are objected to"


def is_about_words(path: str) -> bool:
    return path.startswith(ABOUT_WORDS)


def findings(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The (line, message) pairs of what is to be rewritten in the prose of a file."""
    rules = _RULES if path.endswith(".md") else _RULES + _NOUN_RULES
    for block in blocks(path, text):
        yield from _in_block(block, rules)


def _in_block(block: Block, rules: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str]]:
    joined, starts = "", []
    for line in block:
        joined += " " if joined else ""
        starts.append(len(joined))
        joined += line.text
    for pattern, message in rules:
        for match in pattern.finditer(joined):
            line = _line_at(block, starts, match.start())
            yield line.number, f'"{match.group().strip()}": {message}'


def _line_at(block: Block, starts: list[int], offset: int) -> Line:
    return [line for line, start in zip(block, starts, strict=True) if start <= offset][-1]


def names(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The (line, message) pairs of Python variables that do not say what they hold."""
    if not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(text)):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        if name is not None and name.lstrip("_") in _NOT_NAMES:
            yield node.lineno, f"{name} says nothing of what it holds"


def main(arguments: list[str]) -> int:
    count = 0
    for argument in arguments:
        root = Path(argument)
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            hidden = any(part.startswith((".", "__")) for part in path.parts)
            if hidden or not path.is_file() or path.suffix in (".png", ".gz", ".pyc"):
                continue
            text = path.read_text(encoding="utf-8")
            for found in (findings, names):
                for number, message in found(str(path), text):
                    print(f"{path}:{number}: {message}")
                    count += 1
    print(f"words: {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
