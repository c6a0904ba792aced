#!/usr/bin/env python3
"""Prints figures of the tree's shape, which issues and reviews set goals for.

    tools/structure.py [COMMIT ...]   the working tree beside these commits
    tools/structure.py --change BASE  the lines of code, and by how many they differ from BASE's

The lines of code are the non-blank lines that are neither comment nor docstring, of every tracked
program outside tests, benchmarks and fakes: BUILD files, data and documents are none. Classes and
functions are measured by tools/tidy/structure.py, which says how.

Runs on Python's standard library alone.
"""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from tidy import structure, words
from tidy.comments import blocks

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".cc", ".h", ".c", ".cu", ".py", ".pyi", ".sh", ".proto")
NO_PROGRAM = re.compile(
    r"(^|/)(tests|bench|testing|fakes?)/|_(test|benchmark|fuzz)\.\w+$|(^|/)(test_|fake_)\w*\.|"
    r"(^|/)BUILD$|_test$"
)
# The call does nothing on its way but name chunks.
THINNEST_CALL = "Discard"
SENTENCE = re.compile(r"^(?=.)|(?<=[.!?] )(?=[A-Z`\"(])")


def is_program(path, text):
    """Whether the file is code that users run or that builds and checks it, and no test."""
    if NO_PROGRAM.search(path):
        return False
    name = path.rsplit("/", 1)[-1]
    return path.endswith(SUFFIXES) or ("." not in name and text.startswith("#!"))


def tree(commit=None):
    """Path -> text of the programs of a commit, or of the working tree."""
    texts = {}
    if commit is None:
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
        for path in names:
            file = ROOT / path
            if path and file.is_file() and not file.is_symlink():
                texts[path] = file.read_bytes()
    else:
        archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                if member.isfile():
                    texts[member.name] = files.extractfile(member).read()
    decoded = {path: text.decode(errors="replace") for path, text in texts.items()}
    return {path: text for path, text in decoded.items() if is_program(path, text)}


def lines_of_code(texts):
    return sum(structure.code_lines(path, text) for path, text in texts.items())


def openings(texts):
    """The sentences of comments and docstrings that open with such a word, and all sentences."""
    found = sentences = 0
    for path, text in texts.items():
        for block in blocks(path, text):
            prose = " ".join(line.text for line in block)
            found += len(words.NO_NOUN.findall(prose))
            sentences += len(SENTENCE.findall(prose))
    return found, sentences


def largest_class(texts):
    sizes = [(methods, name) for _, name, _, methods in structure.classes_of(texts)]
    return max(sizes, default=(0, "none"))


def longer_than(limit, texts):
    return sum(
        size > limit
        for path, text in texts.items()
        for _, _, size in structure.functions(path, text)
    )


def files_of_call(texts, call):
    """The files in which a call of a session stands by name, which are those that a new one like it
    touches. daemon/replay makes calls of its own."""
    named = re.compile(
        rf"\b{call}(?:Request|Response|Call)\b|\bmemtide_{call.lower()}\b|ROW\({call},|"
        rf"\babsl::Status (?:\w+::)?{call}\(absl::Span"
    )
    return sorted(
        path
        for path, text in texts.items()
        if named.search(text) and not path.startswith("daemon/replay/")
    )


def engine_sources(texts):
    return {
        path: text
        for path, text in texts.items()
        if path.startswith("daemon/engine/") and path.endswith(".cc")
    }


def figures(texts):
    """Name -> figure, as printed."""
    engine = {path: text for path, text in texts.items() if path.startswith("daemon/engine/")}
    others = {path: text for path, text in texts.items() if path not in engine}
    methods, name = largest_class(engine)
    other_methods, other = largest_class(others)
    sources = engine_sources(texts)
    found, sentences = openings(texts)
    of_call = len(files_of_call(texts, THINNEST_CALL))
    python = sum(
        text.count("\n") for path, text in texts.items() if path.startswith("pyclient/memtide/")
    )
    return {
        "largest class of the engine, methods": f"{methods} ({name})",
        "largest class elsewhere, methods": f"{other_methods} ({other})",
        "engine files in one circle of calls": f"{len(structure.circle(sources))}",
        f"files of a session's call ({THINNEST_CALL})": f"{of_call}",
        "functions over 60 lines": f"{longer_than(60, texts)}",
        "lines of code": f"{lines_of_code(texts):,}",
        "pyclient/memtide, all lines": f"{python:,}",
        "sentences that open with What, That, Those": f"{100 * found / sentences:.2f}%",
    }


def print_table(columns):
    names = list(next(iter(columns.values())))
    rows = [["", *columns], *([name, *(each[name] for each in columns.values())] for name in names)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def main(arguments):
    if arguments[:1] == ["--change"] and len(arguments) == 2:
        now, base = lines_of_code(tree()), lines_of_code(tree(arguments[1]))
        print(f"lines of code: {now:,} ({now - base:+,})")
        return 0
    if any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    columns = {commit[:12]: figures(tree(commit)) for commit in arguments}
    print_table({**columns, "now": figures(tree())})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
