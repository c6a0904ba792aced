"""Parsers of the command line, which refuse it in a line, and show its usage in another."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """The parser of `memtide`, or of one of its commands."""

    # The name of the flag that gets what stands after `--`. Empty: `--` ends the options.
    passes_on = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but what a command does not know is refused by its own parser, which has
        the right usage; argparse leaves it to the one above."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if self.passes_on and "--" in words else len(words)
        flags, unknown = super().parse_known_args(words[:end], namespace)
        if self.passes_on:
            flags.__dict__[self.passes_on] = words[end + 1 :]
        if unknown:
            name = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(name, self._option_string_actions, 1)
            what = f"no option '{name}'" if name.startswith("-") else f"'{name}' is too much"
            self.error(f"{what}{f'; is it {near[0]}?' if near else ''}")
        return flags, unknown

    def error(self, message: str) -> NoReturn:
        """Ends this process with status 2."""
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"memtide: {message}\n{usage}; {self.prog} --help lists the options\n")


def add_socket_dir(parser: argparse._ActionsContainer) -> None:
    """Adds --socket-dir, by which a command finds a daemon."""
    parser.add_argument(
        "--socket-dir", type=Path, metavar="DIR", help="directory of the daemon's sockets"
    )
