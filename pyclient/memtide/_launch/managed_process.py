"""A process under `memtide run`: its session, the hooks in torch, and the summary at the end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rich.console import Console

from memtide._activations.budget import Budget, budget_of
from memtide._capi import admin
from memtide._launch import deferred_start, larger_pool, pool_advice
from memtide._launch.deferred_start import Stepping
from memtide._node import gpu_per_rank
from memtide._node.connect import SessionRequest, connect
from memtide._node.memory_budget import MemoryBudget
from memtide._node.named_job import resume_job
from memtide._node.private_daemon import Pools
from memtide._telemetry import summary_tables
from memtide._telemetry.process_memory import available_host_bytes
from memtide._telemetry.progress import Progress
from memtide._telemetry.recorder import Recorder, Summary
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._util.console import make_console
from memtide._util.sizes import format_size
from memtide.errors import MemtideError

T = TypeVar("T")

_LINKS_TO_SSD = ("ssd_read_bytes", "ssd_written_bytes")
_LONGEST_REPLAY_S = 1.0


@dataclass(frozen=True)
class Outputs:
    """The files to write; None: the file is not written."""

    stats: Path | None = None
    tide: Path | None = None
    tide_iteration: int = 6
    trace: Path | None = None

    def absolute(self) -> Outputs:
        """The same files, independent of the working directory, which a script may change."""
        return replace(
            self,
            stats=self.stats and self.stats.absolute(),
            tide=self.tide and self.tide.absolute(),
            trace=self.trace and self.trace.absolute(),
        )


@dataclass(frozen=True)
class Options:
    """The options of `memtide run`."""

    request: SessionRequest
    outputs: Outputs
    quiet: bool = False
    skip_non_finite: bool = False
    resume: bool = False


class Managed:
    """A context in which states are in chunks. At its end it prints the summary of the run.

    Only rank 0 prints the full summary and writes the output files. A `spawned` rank, and a process
    that has started ranks, print anything only if they have trained. The constructor raises
    the exceptions of `connect`.
    """

    def __init__(self, options: Options, rank: str = "0", *, spawned: bool = False) -> None:
        if rank != "0":
            options = replace(options, outputs=Outputs())
        self._options = options
        self._rank = rank
        self._may_not_train = spawned
        self._owner = os.getpid()
        self._session_closed = False  # While ranks of this process train.
        self._progress: Progress | None = None  # Only on a terminal.
        self._open(options.request)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        if os.getpid() == self._owner and self._progress is not None:
            self._progress.close()
        if os.getpid() == self._owner and not self._session_closed:
            failed = error is not None and not isinstance(error, SystemExit)
            self._write_outputs(silent=failed and not self._has_trained(), replays=not failed)
            if isinstance(error, KeyboardInterrupt) and self._connection.daemon is not None:
                self._connection.daemon.hurry()

    def lacking_room(self) -> str | None:
        """What the script's states lack, in a line; None: nothing, or it is not known."""
        if self._session_closed:
            return None
        return pool_advice.lacking_room(
            self._connection.client, model_is_complete=self._recorder.iterating
        )

    def start_ranks(self, count: int, start: Callable[[Options | None], T], *, waits: bool) -> T:
        """Calls `start(options)`, where `options` configures the `count` ranks that it starts; None
        starts them without memtide. `waits`: `start` returns when the ranks have ended.

        If this process waits and has no chunks, it ends its session before, so that the ranks have
        all memory, and opens a new one when they have ended.
        """
        # A forked child has no session, and only one process can be in a named job.
        if os.getpid() != self._owner or self._options.request.job_name:
            return start(None)
        # A budget is of one process.
        request = replace(
            self._options.request,
            pools=Pools(),
            budget=MemoryBudget(),
            socket_dir=self._connection.socket_dir,
        )
        options = replace(self._options, request=replace(request, ranks=count))
        # A process that has trained prints the summary and writes the files itself.
        if not self._session_closed and self._has_trained():
            return start(replace(options, outputs=Outputs(), quiet=True))
        self._may_not_train = True
        self._session_closed = self._session_closed or (waits and deferred_start.end())
        if self._session_closed and self._stop_daemon_for_ranks():
            request = self._options.request
            pools = replace(request.pools, device=gpu_per_rank.GPU_OF_RANK)
            request = replace(request, pools=pools, budget=MemoryBudget())
            options = replace(options, request=replace(request, ranks=count))
        result = start(options)
        if self._session_closed:
            self._open_again(request)
        return result

    def _stop_daemon_for_ranks(self) -> bool:
        """Ends this process's private daemon if each rank is to start its own; returns whether.

        A daemon has one GPU (decision 19): each rank starts one for the GPU of its number.
        """
        request, daemon = self._options.request, self._connection.daemon
        alone = request.ranks == 1 and request.socket_dir is None
        if daemon is None or not alone or not gpu_per_rank.is_wanted(request.pools):
            return False
        daemon.stop()
        return True

    def _open(self, request: SessionRequest) -> None:
        self._connection = connect(request)
        self._recorder = Recorder(
            self._connection.client,
            self._connection.socket_dir,
            self._options.outputs.tide_iteration if self._options.outputs.tide else None,
        )
        budget = self._budget = budget_of(self._connection)
        if budget is not None and not self._options.quiet and self._rank == "0":
            self._say_default(budget)
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if sys.stderr.isatty() and not self._options.quiet and self._rank == "0":
            self._progress = Progress(self._recorder)
        deferred_start.install(
            self._connection.client,
            self._progress or self._recorder,
            self._stepping(),
            self.start_ranks,
            enter_rank,
            budget,
            self._say,
        )

    def _say(self, line: str) -> None:
        if self._options.quiet or self._rank != "0":
            return
        if self._progress is not None:
            self._progress.erase()
        print(f"memtide: {line}", file=sys.stderr)

    def _say_default(self, budget: Budget) -> None:
        limits = budget.limits
        if limits.host_bytes is not None and not self._options.request.budget.named():
            print(
                f"memtide: the budget is {format_size(limits.host_bytes)} of host memory, what "
                f"{limits.host_source} leaves (--host-memory sets another)",
                file=sys.stderr,
            )

    def _open_again(self, request: SessionRequest) -> None:
        try:
            self._open(request)
        except MemtideError as error:
            print(f"memtide: the script goes on without memtide: {error}", file=sys.stderr)
        else:
            self._session_closed = False

    def _has_trained(self) -> bool:
        stats = self._connection.client.stats()
        return bool(self._recorder.iterations or stats.chunks or stats.acquires)

    def _stepping(self) -> Stepping:
        options = self._options
        if not options.request.job_name:
            return Stepping(skip_non_finite=options.skip_non_finite)
        manifest = resume_job(
            self._connection.client,
            self._connection.socket_dir,
            options.request.job_name,
            resume=options.resume,
        )
        return Stepping(skip_non_finite=options.skip_non_finite, commit=True, manifest=manifest)

    def _write_outputs(self, *, silent: bool, replays: bool) -> None:
        console = make_console(stderr=True)
        outputs = self._options.outputs
        try:
            if self._may_not_train and not self._has_trained():
                return
            summary = self._recorder.finish(
                self._budget.as_json() if self._budget else None, deferred_start.bytes_by_kind()
            )
        except MemtideError as error:
            console.print(
                f"memtide: no summary, as the daemon does not answer: {error}", markup=False
            )
            return
        # The file comes first: printing fails if the reader of the output has ended.
        if outputs.stats is not None:
            text = json.dumps(summary.as_json(), indent=1)
            outputs.stats.write_text(text + "\n", encoding="utf-8")
        if not self._options.quiet and not silent:
            self._print(summary, console)
            if replays and self._rank == "0":
                self._print_larger_pool(summary, console)
        if outputs.tide is not None:
            _draw(summary, outputs.tide, console)
        if outputs.trace is not None:
            _export_trace(self._connection.socket_dir, outputs.trace, console)

    def _print(self, summary: Summary, console: Console) -> None:
        if self._rank != "0":
            summary_tables.print_if_nothing_managed(
                summary, console, f"memtide, in rank {self._rank},"
            )
            return
        summary_tables.print_summary(summary, console)
        if not self._options.request.chunk_bytes:
            pool_advice.print_chunk_size(self._connection.client, console)

    def _print_larger_pool(self, summary: Summary, console: Console) -> None:
        # The node's daemon is not the user's to enlarge, and a budget sizes the pools itself.
        is_own = self._connection.daemon is not None and self._budget is None
        if not is_own or not any(summary.moved_bytes[link] for link in _LINKS_TO_SSD):
            return
        with contextlib.suppress(MemtideError):
            job_id = traces.job_of_process(self._connection.socket_dir, os.getpid())
            raw = traces.fetch(self._connection.socket_dir, job_id)
            line = larger_pool.line_about_larger_pool(
                raw, available_host_bytes(), _LONGEST_REPLAY_S
            )
            if line is not None:
                console.print(f"memtide: {line}", style="yellow", markup=False)


def enter_rank(options: Options, index: int) -> contextlib.AbstractContextManager[None]:
    """The context of this new process as rank `index`. If no session can be opened, the rank trains
    without memtide."""
    options = replace(options, request=replace(options.request, rank=index))
    try:
        return Managed(options, str(index), spawned=True)
    except MemtideError as error:
        print(f"memtide: rank {index} trains without memtide: {error}", file=sys.stderr)
        return contextlib.nullcontext()


def _draw(summary: Summary, path: Path, console: Console) -> None:
    if summary.tide is None:
        console.print("memtide: no tide is drawn, as no optimizer stepped")
        return
    from memtide._plot import memory_plot

    memory_plot.draw(summary.tide, path)


def _export_trace(socket_dir: Path, path: Path, console: Console) -> None:
    try:
        job_id = traces.job_of_process(socket_dir, os.getpid())
        serialized = traces.fetch(socket_dir, job_id)
        planned = deferred_start.planned_activations()
        if planned is not None:
            profile, plan = (each.as_json() for each in planned)
            added = {"activation_profile": profile, "activation_plan": plan}
            serialized = admin.add_to_trace(serialized, added)
        trace_files.export(serialized, path)
    except MemtideError as error:
        console.print(f"memtide: no trace: {error}", markup=False)
