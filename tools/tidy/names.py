"""Names in anonymous namespaces, which two sources of a package may not share, nor a source and a
header of it, or a test and a header for tests.

bazel/module.bzl compiles a dozen sources as one unit, and which ones share a unit changes with each
new file. Where two sources have the same helper, it belongs in a header.
"""

import re
from pathlib import PurePath

_HEADERS = re.compile(r"^(?:inline )?constexpr [^=({]*\b(k[A-Z]\w*)", re.MULTILINE)
_APART = ("_test.cc", "_fuzz.cc", "_benchmark.cc", "_main.cc", "main.cc")
_BRACE = re.compile(r"[{}]")
_ANONYMOUS = re.compile(r"\bnamespace\s*$")
_TYPE = re.compile(r"\b(?:class|struct|enum class|enum|union)\s+(\w+)\s*(?:final\s*)?(?::[^:;]*)?$")
_ANNOTATION = re.compile(r"\bABSL_\w+\([^()]*\)")
_CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?:\[\w*\])?\s*(?==|$)")
_FUNCTION = re.compile(
    r"(?<!::)\b(\w+)\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:const\s*)?(?:->[^;{]*)?$"
)


def anonymous_names(code):
    """(name, line) of each definition in the anonymous namespaces of a text without comments. A
    function's name has its parameters with it, as others may overload it."""
    depth, inside, start, line = 0, None, 0, 1
    for brace in _BRACE.finditer(code):
        before = code[start : brace.start()]
        line += before.count("\n")
        start = brace.end()
        if brace.group() == "{":
            if inside is None and _ANONYMOUS.search(before):
                inside = depth + 1
            elif inside == depth:
                yield from ((name, line) for name in _defined(before))
            depth += 1
        else:
            if inside == depth:
                yield from ((name, line) for name in _defined(before))
                inside = None
            depth -= 1


def _defined(text):
    for statement in text.split(";"):
        statement = _ANNOTATION.sub("", statement).strip()
        if found := _TYPE.search(statement):
            yield found[1]
        function = _FUNCTION.search(statement)
        if function and not _CONSTANT.search(statement.partition("(")[0]):
            yield f"{function[1]}({' '.join(function[2].split())})"
        else:
            yield from _CONSTANT.findall(statement)


def check_names(files, package_of):
    """(file, line, message) of each name that two sources of a package have, and of each constant
    of a source that a header of the package has, or of a test that one of its testing folder has.
    """
    seen, of_headers = {}, {}
    for file in files:
        if file.path.endswith(".h"):
            folder = PurePath(file.path).parent
            package = package_of(file.path) if folder.name != "testing" else f"{folder.parent}/test"
            for name in _HEADERS.findall("\n".join(file.code_lines)):
                of_headers.setdefault((package, name), file.path)
    for file in files:
        if not file.path.endswith(".cc"):
            continue
        package = package_of(file.path)
        is_apart = PurePath(file.path).name.endswith(_APART)
        for name, line in anonymous_names("\n".join(file.code_lines)):
            header = of_headers.get((package, name))
            if file.path.endswith("_test.cc"):
                header = header or of_headers.get((f"{package}/test", name))
            first = file.path if is_apart else seen.setdefault((package, name), file.path)
            if header is not None or first != file.path:
                yield file, line, f"{name} is in {header or first}, too, and both may be one unit"
