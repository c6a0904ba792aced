"""The files that `memtide run` writes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from memtide._capi import admin
from memtide._daemon.connect import Connection
from memtide._launch import deferred_start, planned_run
from memtide._plan_file.plan_file import Plan
from memtide._telemetry.recorder import Summary
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._trace.residency import Residency, residency
from memtide.errors import MemtideError


@dataclass(frozen=True)
class Outputs:
    """The files to write; None: the file is not written."""

    stats: Path | None = None
    tide: Path | None = None
    tide_iteration: int = 6
    trace: Path | None = None
    records_blocks: bool = False  # The trace has what torch's allocator did.

    def absolute(self) -> Outputs:
        """The same files, independent of the working directory, which a script may change."""
        return replace(
            self,
            stats=self.stats and self.stats.absolute(),
            tide=self.tide and self.tide.absolute(),
            trace=self.trace and self.trace.absolute(),
        )

    @property
    def flags(self) -> list[str]:
        """The flags that ask for the files."""
        files = (("--stats", self.stats), ("--tide", self.tide), ("--trace", self.trace))
        return [flag for flag, file in files if file is not None]

    def write_stats(self, summary: Summary, plan: Plan | None = None) -> None:
        """Writes the costs of the run, beside what a plan has predicted."""
        if self.stats is not None:
            predicted = {} if plan is None else {"plan": planned_run.as_json(plan, summary)}
            text = json.dumps({**summary.as_json(), **predicted}, indent=1)
            self.stats.write_text(text + "\n", encoding="utf-8")

    def write_pictures(self, summary: Summary, connection: Connection, console: Console) -> None:
        """Draws the tide and exports the trace of the connection's job."""
        self.draw_tide(summary, connection, console)
        if self.trace is not None:
            _export_trace(connection, self.trace, console)

    def draw_tide(self, summary: Summary, connection: Connection | None, console: Console) -> None:
        """Draws the tide; without a connection, it lacks what the daemon knows of the job."""
        if self.tide is not None:
            _draw(summary, self.tide, connection, console)


def _draw(summary: Summary, path: Path, connection: Connection | None, console: Console) -> None:
    if summary.tide is None:
        console.print("memtide: no tide is drawn, as no optimizer stepped")
        return
    from memtide._plot import memory_plot

    memory_plot.draw(summary.tide, path, None if connection is None else _residency(connection))


def _residency(connection: Connection) -> Residency | None:
    # A daemon that ends first leaves no trace, and the picture lacks a panel.
    with contextlib.suppress(MemtideError):
        job_id = connection.client.properties.job_id
        return residency(traces.parse(traces.fetch(connection.socket_dir, job_id)))
    return None


def _export_trace(connection: Connection, path: Path, console: Console) -> None:
    try:
        job_id = connection.client.properties.job_id
        serialized = traces.fetch(connection.socket_dir, job_id)
        added = {}
        runtime = deferred_start.current()
        plans = runtime.searched_plans if runtime is not None else None
        if plans is not None and plans.latest is not None:
            profile, plan = (each.as_json() for each in plans.latest)
            added = {"activation_profile": profile, "activation_plan": plan}
        blocks = runtime.blocks if runtime is not None else None
        if blocks is not None and (record := blocks.finish()) is not None:
            added["allocator"] = record.as_json()
        if added:
            serialized = admin.add_to_trace(serialized, added)
        trace_files.export(serialized, path)
    except MemtideError as error:
        console.print(f"memtide: no trace: {error}", markup=False)
