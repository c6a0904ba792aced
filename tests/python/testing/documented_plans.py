"""The commands of the pages on plans, and what they print.

    PYTHONPATH=pyclient:tests/python/testing python tests/python/testing/documented_plans.py

writes what they print now into the pages.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from harness import REPOSITORY, Cli

PAGES = (REPOSITORY / "docs" / "plan.md", REPOSITORY / "docs" / "plan_devices.md")
_FOLDER = REPOSITORY / "docs" / "plan"
# A command, whose line may go on after a backslash, and what stands below it in its block.
_EXAMPLE = re.compile(r"^\$ memtide (plan (?:.*\\\n)*.*)\n((?:(?!```|\$ ).*\n)*)", re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The arguments of each command."""
    return [_arguments(match[1]) for match in _EXAMPLE.finditer(page)]


def rewritten(page: str, cli: Cli) -> str:
    """The page with what the commands print now, in docs/plan/."""

    def example(match: re.Match[str]) -> str:
        done = cli.memtide(*_arguments(match[1]), cwd=_FOLDER)
        assert done.status in (0, 3), done.err
        return f"$ memtide {match[1]}\n{done.out}"

    return _EXAMPLE.sub(example, page)


def _arguments(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        for path in PAGES:
            path.write_text(rewritten(path.read_text("utf-8"), Cli(Path(home))), encoding="utf-8")
