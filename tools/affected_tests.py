#!/usr/bin/env python3
"""Which tests to run for changed files, whose paths (relative to the checkout) are lines of stdin.

    git diff --name-only HEAD | tools/affected_tests.py --bazel     a query for Bazel's test targets
    git diff --name-only HEAD | tools/affected_tests.py --pytest    paths for pytest

A C++ test is affected if Bazel says that it depends on a changed file. Tests of the packages that
we ship depend on everything, and are affected only by what packs them. Python tests lie as the
package does: pyclient/memtide/_trace/model.py affects tests/python/trace/, all of memtide_plan
affects tests/python/plan/. Where there is no such
folder, and for helpers of tests, the test files that name the module are affected. Where nothing is
affected, nothing is printed.

Runs on Python's standard library alone.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/python"
PACKED_BY = ("deploy/", "VERSION", "pyproject.toml", "BUILD", "bazel/")


def label(path, root):
    """The Bazel label of a file: it belongs to the package of the nearest BUILD file above it."""
    if path.endswith((".bzl", ".bazelrc")) or path == "WORKSPACE":
        return "//..."
    folder = Path(path).parent
    while folder != Path() and not (root / folder / "BUILD").is_file():
        folder = folder.parent
    package = "" if folder == Path() else str(folder)
    name = str(Path(path).relative_to(folder))
    return f"//{package}:all" if name == "BUILD" else f"//{package}:{name}"


def bazel_query(changed, root):
    """A query for the affected test targets, or "" where no changed file can have any."""
    labels = sorted({label(path, root) for path in changed if (root / path).is_file()})
    if not labels:
        return ""
    query = f"tests(rdeps(//..., set({' '.join(labels)}))) except attr(tags, manual, //...)"
    if not any(path.startswith(PACKED_BY) for path in changed):
        query += " except //deploy/..."
    return query


def tests_naming(pattern, root):
    """The test files whose text has the regular expression."""
    compiled = re.compile(pattern)
    files = sorted((root / TESTS).rglob("test_*.py"))
    return {str(file.relative_to(root)) for file in files if compiled.search(file.read_text())}


def affected_by(path, root):
    """The paths of the Python tests that one changed file affects."""
    file = Path(path)
    if path.startswith("pyclient/memtide_plan/"):
        return {f"{TESTS}/plan"}
    if path.startswith("pyclient/memtide_methods/"):
        path = path.replace("memtide_methods", "memtide")
        file = Path(path)
    if path.startswith("pyclient/memtide/"):
        folder, *rest = file.relative_to("pyclient/memtide").parts
        package = folder.lstrip("_")
        if rest and (root / TESTS / package).is_dir():
            return {f"{TESTS}/{package}"}
        return tests_naming(rf"\bmemtide(\.|\.[\w.]+\.| import ([\w, ]*, )?){file.stem}\b", root)
    if not path.startswith(TESTS + "/") or not path.endswith(".py"):
        return set()
    if file.name.startswith("test_"):
        return {path} if (root / path).is_file() else set()
    if file.name == "conftest.py":
        return {str(file.parent)}
    return tests_naming(rf"\b{file.stem}\b", root)


def pytest_paths(changed, root):
    """Folders and test files for pytest; a file in one of the folders is not named again."""
    found = set().union(*(affected_by(path, root) for path in changed))
    return sorted(
        path for path in found if not any(str(above) in found for above in Path(path).parents)
    )


def main():
    if sys.argv[1:] not in (["--bazel"], ["--pytest"]):
        sys.exit(__doc__)
    changed = sys.stdin.read().splitlines()
    if sys.argv[1] == "--bazel":
        lines = [bazel_query(changed, ROOT)]
    else:
        lines = pytest_paths(changed, ROOT)
    for line in filter(None, lines):
        print(line)


if __name__ == "__main__":
    main()
