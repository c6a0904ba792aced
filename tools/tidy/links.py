"""The targets of documents: links and their headings, paths of this tree, and Bazel's targets.

Paths are looked up under a root, so that a document that names a file which has moved is found by
the commit that moves it.
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

# Named by documents before they are here. A line goes when its folder or file has come.
TO_COME = ("docs/simulation.md",)

# Not of the tree, and there only after a tool has run.
_OUTPUTS = "out"

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"`([\w.-]+(?:/[\w.{},*-]+)+/?)`")
_LABEL = re.compile(r"(?<![\w:])//([\w/-]+):([\w.-]+)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_BRACES = re.compile(r"\{([^{}]*)\}")


def findings(path: str, text: str, root: Path) -> Iterator[tuple[int, str]]:
    """The (line, message) pairs of what a Markdown file points at and the tree does not have."""
    if not path.endswith(".md"):
        return
    folder = Path(path).parent
    for number, line in enumerate(text.split("\n"), 1):
        for target in _LINK.findall(line):
            if "://" in target:
                continue
            name, _, heading = target.partition("#")
            pointed_at = root / folder / name if name else root / path
            if not _is_to_come(pointed_at, root) and not pointed_at.exists():
                yield number, f"{name} does not exist"
            elif heading and pointed_at.is_file():
                own = text if not name else pointed_at.read_text(encoding="utf-8")
                if heading not in _anchors(own):
                    yield number, f"{name or path} has no heading #{heading}"
        for named in _CODE.findall(line):
            top = named.split("/")[0]
            if top != _OUTPUTS and (root / top).is_dir() and not _exists(named, root):
                yield number, f"{named} does not exist"
        for package, target in _LABEL.findall(line):
            build = root / package / "BUILD"
            text = build.read_text(encoding="utf-8") if build.is_file() else ""
            # bazel/module.bzl names the tests of a package.
            by_macro = target == "test" and re.search(r"^(module|tests)\(", text, re.MULTILINE)
            if not by_macro and f'"{target}"' not in text:
                yield number, f"there is no target //{package}:{target}"


def _exists(named: str, root: Path) -> bool:
    """Whether each path that `named` stands for is a file, a folder or a Bazel target's source."""
    parts = _BRACES.split(named.rstrip("/"))
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    for path in map("".join, product(*choices)):
        pattern = path if "*" in path.rsplit("/", 1)[-1] else path + "*"
        is_there = (root / path).exists() or any(
            found.stem == Path(path).name or "*" in path for found in root.glob(pattern)
        )
        if not is_there and not _is_to_come(root / path, root):
            return False
    return True


def _is_to_come(path: Path, root: Path) -> bool:
    resolved = path.resolve()
    return resolved.is_relative_to(root) and str(resolved.relative_to(root)).startswith(TO_COME)


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    plain = (re.sub(r"\]\([^)]*\)", "]", heading) for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}
