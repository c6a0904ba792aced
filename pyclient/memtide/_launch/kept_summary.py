"""Keeps the summary of a process that may be killed where `memtide run` finds it, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from memtide._launch.options import Options
from memtide._launch.run_folder import RunFolder
from memtide._telemetry import summary_tables
from memtide._telemetry.observer import Observer, Passing
from memtide._telemetry.recorder import Summary
from memtide._util.console import make_console

# The summary is this old at most, and keeping it takes at most this part of the time.
_KEPT_EVERY_S, _MOST_PART = 5.0, 0.005


class KeptSummary(Passing):
    """Calls `keep` after the first step, and then now and then after others."""

    def __init__(self, next_observer: Observer, keep: Callable[[], None]) -> None:
        super().__init__(next_observer)
        self._keep = keep
        self._due_s = float("-inf")

    def end_iteration(self) -> None:
        super().end_iteration()
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        self._keep()
        ended_s = time.monotonic()
        self._due_s = ended_s + max(_KEPT_EVERY_S, (ended_s - began_s) / _MOST_PART)


def show(run: RunFolder, options: Options) -> None:
    """Prints the summary that the run's writer has kept, and writes its files, unless it has done
    so itself."""
    if run.is_written:
        return
    summary: Summary | None = run.kept_summary
    outputs, console = options.outputs, make_console(stderr=True)
    if summary is None:
        known = f"there is no {', '.join(['summary', *outputs.flags])} of it"
    else:
        known = f"its summary is of its first {summary.iterations} steps"
        known += ", and there is no --trace of it" if outputs.trace is not None else ""
    if not options.quiet:
        print(
            f"memtide: process {run.writer}, which trained first, was killed or still runs (Ray "
            f"kills its workers): {known}",
            file=sys.stderr,
        )
    if summary is None:
        return
    outputs.write_stats(summary, options.plan)
    if not options.quiet:
        summary_tables.print_summary(summary, console)
    outputs.draw_tide(summary, None, console)
