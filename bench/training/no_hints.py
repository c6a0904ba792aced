"""Runs a script under `memtide run` without hints: no moment and no iteration is reported.

memtide run no_hints.py SCRIPT ARGS...
"""

from __future__ import annotations

import runpy
import sys

from memtide._capi.client import Client


def _report_nothing(*_arguments: object) -> None:
    pass


Client.moment = Client.end_iteration = _report_nothing  # type: ignore[method-assign,assignment]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
