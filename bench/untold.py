"""Runs a script under `memtide run` while the daemon is told nothing of moments and iterations.

memtide run untold.py SCRIPT ARGS...
"""

from __future__ import annotations

import runpy
import sys

from memtide._native import Client


def _say_nothing(*_arguments: object) -> None:
    pass


Client.moment = Client.end_iteration = _say_nothing  # type: ignore[method-assign,assignment]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
