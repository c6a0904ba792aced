"""A process under `memtide run`: its session, the hooks in torch, and the report at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rich.console import Console

from memtide import chunk_size, gpu_each, report, runtime_hook, trace, trace_file
from memtide._native import Client
from memtide.connect import Wish, connect
from memtide.daemon import Pools
from memtide.errors import MemtideError
from memtide.named_job import take_up
from memtide.runtime_hook import Stepping
from memtide.stats import Recorder, Summary

T = TypeVar("T")


@dataclass(frozen=True)
class Outputs:
    """Where to write what."""

    stats: Path | None = None
    tide: Path | None = None
    tide_iteration: int = 6
    trace: Path | None = None

    def absolute(self) -> Outputs:
        """The same, also when a script has changed the working directory."""
        return replace(
            self,
            stats=self.stats and self.stats.absolute(),
            tide=self.tide and self.tide.absolute(),
            trace=self.trace and self.trace.absolute(),
        )


@dataclass(frozen=True)
class Options:
    """How a process is managed."""

    wish: Wish
    outputs: Outputs
    quiet: bool = False
    exact: bool = False  # Optimizers step in the script's process. Not with a job's name.
    skip_non_finite: bool = False
    resume: bool = False


class Managed:
    """What is trained inside this context is in chunks; what it cost is told at its end.

    Of the ranks of one training the first one tells. Who may have other things to do than to train,
    a rank that was `spawned` or a process that has started such, tells only of what it has trained.
    Exceptions of `connect` come out when it is made.
    """

    def __init__(self, options: Options, rank: str = "0", *, spawned: bool = False) -> None:
        if rank != "0":
            options = replace(options, outputs=Outputs())
        self._options = options
        self._rank = rank
        self._trains_perhaps = spawned
        self._owner = os.getpid()
        self._ended = False  # Its session, while ranks that it has started train.
        self._open(options.wish)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        if os.getpid() == self._owner and not self._ended:
            if self._progress is not None:
                self._progress.clear()
            self._conclude()

    def start_ranks(self, count: int, start: Callable[[Options | None], T], *, waits: bool) -> T:
        """Calls `start` with how so many ranks that it starts are to be managed; None: they are
        not. `waits`: it returns when they have ended. Until then a process that has no chunks
        leaves all memory to them.
        """
        if os.getpid() != self._owner or self._options.wish.job_name:
            return start(None)
        wish = replace(self._options.wish, pools=Pools(), socket_dir=self._connection.socket_dir)
        options = replace(self._options, wish=replace(wish, ranks=count))
        if not self._ended and self._has_trained():
            return start(replace(options, outputs=Outputs(), quiet=True))
        self._trains_perhaps = True
        self._ended = self._ended or (waits and runtime_hook.end())
        if self._ended and self._leaves_gpus():
            wish = self._options.wish
            pools = replace(wish.pools, device=gpu_each.GPU_OF_RANK)
            options = replace(options, wish=replace(wish, pools=pools, ranks=count))
        started = start(options)
        if self._ended:
            self._open_again(wish)
        return started

    def _leaves_gpus(self) -> bool:
        """Ends a private daemon where each rank is to have one, with a GPU of its own."""
        wish, daemon = self._options.wish, self._connection.daemon
        alone = daemon is not None and wish.ranks == 1 and wish.socket_dir is None
        if not alone or not gpu_each.is_wanted(wish.pools):
            return False
        daemon.stop()
        return True

    def _open(self, wish: Wish) -> None:
        self._connection = connect(wish)
        self._recorder = Recorder(
            self._connection.client,
            self._connection.socket_dir,
            self._options.outputs.tide_iteration if self._options.outputs.tide else None,
        )
        self._progress = None
        if sys.stderr.isatty() and not self._options.quiet and self._rank == "0":
            self._progress = report.Progress(self._recorder)
        runtime_hook.install(
            self._connection.client, self._progress or self._recorder, self._stepping(), self
        )

    def _open_again(self, wish: Wish) -> None:
        try:
            self._open(wish)
        except MemtideError as error:
            print(f"memtide: the script goes on without memtide: {error}", file=sys.stderr)
        else:
            self._ended = False

    def _has_trained(self) -> bool:
        stats = self._connection.client.stats()
        return bool(self._recorder.iterations or stats.chunks or stats.acquires)

    def _stepping(self) -> Stepping:
        options = self._options
        if not options.wish.job_name:
            return Stepping(options.exact, options.skip_non_finite)
        found = take_up(
            self._connection.client,
            self._connection.socket_dir,
            options.wish.job_name,
            resume=options.resume,
        )
        return Stepping(skip_non_finite=options.skip_non_finite, keep=True, found=found)

    def _conclude(self) -> None:
        console = Console(stderr=True, highlight=False)
        outputs = self._options.outputs
        try:
            if self._trains_perhaps and not self._has_trained():
                return
            summary = self._recorder.finish()
        except MemtideError as error:
            console.print(f"memtide: no summary, the daemon is gone: {error}", markup=False)
            return
        # First: who reads what is printed may leave in the middle of it.
        if outputs.stats is not None:
            told = json.dumps(summary.as_json(), indent=1)
            outputs.stats.write_text(told + "\n", encoding="utf-8")
        if not self._options.quiet:
            self._print(summary, console)
        if outputs.tide is not None:
            _draw(summary, outputs.tide, console)
        if outputs.trace is not None:
            _export_trace(self._connection.socket_dir, outputs.trace, console)

    def _print(self, summary: Summary, console: Console) -> None:
        if self._rank != "0":
            report.print_if_nothing_managed(summary, console, f"memtide, in rank {self._rank},")
            return
        report.print_summary(summary, console)
        if not self._options.wish.chunk_bytes:
            _advise(self._connection.client, console)


def _advise(client: Client, console: Console) -> None:
    # The session was opened before there was a model to choose the size for.
    properties = client.properties
    pools = {
        tier: slots * properties.chunk_bytes
        for tier, slots in (
            ("device", properties.device_slots),
            ("host", properties.host_slots),
            ("ssd", properties.ssd_slots),
        )
    }
    found = chunk_size.clearly_better(runtime_hook.parameters(), pools, properties.chunk_bytes)
    if found is not None:
        report.print_advice(*found, console)


def _draw(summary: Summary, path: Path, console: Console) -> None:
    if summary.tide is None:
        console.print("memtide: no optimizer stepped, so there is no tide to draw")
        return
    from memtide import tide

    tide.draw(summary.tide, path)


def _export_trace(socket_dir: Path, path: Path, console: Console) -> None:
    try:
        job_id = trace.job_of_process(socket_dir, os.getpid())
        trace_file.export(trace.fetch(socket_dir, job_id), path)
    except MemtideError as error:
        console.print(f"memtide: no trace: {error}", markup=False)
