"""A process of `memtide run`: its session, the hooks in torch, and the summary at the end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from memtide._activations.budget import Budget, budget_of
from memtide._daemon import least_pools, training
from memtide._daemon.connect import Connection, Reached, SessionRequest, open_session, reach
from memtide._daemon.memory_budget import MemoryBudget
from memtide._daemon.private_daemon import Pools
from memtide._launch import (
    deferred_start,
    forked,
    fully_sharded,
    kept_summary,
    larger_pool,
    planned_run,
    pool_advice,
    process_group,
    ranks,
    spawned_ranks,
)
from memtide._launch.first_parameter import FirstParameter
from memtide._launch.first_step import FirstStep
from memtide._launch.options import Inherited, Options
from memtide._launch.outputs import Outputs
from memtide._launch.run_folder import RunFolder
from memtide._resume import resumed_step
from memtide._resume.named_job import NamedJob
from memtide._telemetry import summary_tables
from memtide._telemetry.observer import Observer
from memtide._telemetry.progress import Progress
from memtide._telemetry.recorder import Recorder, Summary
from memtide._torch_hooks.around_step.stepping import Stepping
from memtide._torch_hooks.patching.later_patches import LaterPatches
from memtide._util.console import make_console
from memtide._util.sizes import format_size
from memtide.errors import MemtideError

if TYPE_CHECKING:
    from memtide._torch_hooks.runtime import Runtime

T = TypeVar("T")


class Managed:
    """A context in which states are in chunks. At its end it prints the summary of the process.

    The daemon is there from the beginning, and the session from the first parameter on, or the
    first question for the resumed step, so that a process that only starts others takes no memory
    from them. A daemon that is started has all GPUs
    that are visible, as ranks that the script starts use it, too (decision 36).

    Only rank 0 prints the full summary and may write the output files. Processes that have not
    trained print nothing, except that of `memtide run` if no process has. The constructor raises
    the exceptions of `reach`.
    """

    def __init__(
        self, options: Options, join: Callable[[RunFolder], None], run: RunFolder | None = None
    ) -> None:
        """`join`: manages a forked child as one of the run. `run`: that of the process which
        started this one; None: this is `memtide run`."""
        self._options = options
        self._join_run = join
        self._is_first = run is None
        self._owner = os.getpid()
        # If a launcher has started several `memtide run`, each has a daemon of its own.
        self._has_siblings = self._is_first and ranks.in_environment() is None
        self._rank = ranks.Rank()
        self._reached: Reached | None = None
        self._connection: Connection | None = None
        self._recorder: Recorder | None = None
        self._progress: Progress | None = None  # Only on a terminal.
        self._budget: Budget | None = None
        self._job: NamedJob | None = None
        self._has_agreed = False
        self._is_finished = False
        request = options.request
        if self._is_first:
            least_pools.check(request.pools, chunk_bytes=request.chunk_bytes)
        if request.job_name or self._is_first:
            self._reached = reach(self._of_rank(request))
        self._run = run or self._announced()
        os.register_at_fork(after_in_child=self._forked)
        self._patches = LaterPatches()
        spawned_ranks.watch(self.start_ranks, self._patches)
        if options.sharing is not None:
            fully_sharded.watch(self._patches)
        if not request.job_name:
            process_group.watch(self._join_ranks, self._patches)
        if not self._is_first:
            self._open()
            return
        self._first = FirstParameter(self._join)
        if request.job_name:
            resumed_step.settle_by(self._first.come)
            process_group.watch(self._agree, self._patches)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.finish(failed=error is not None and not isinstance(error, SystemExit))
        interrupted = isinstance(error, KeyboardInterrupt) and os.getpid() == self._owner
        if interrupted and self._reached is not None and self._reached.daemon is not None:
            self._reached.daemon.hurry()

    def finish(self, *, failed: bool = False) -> None:
        """Prints the summary and writes the files, once. A forked child does nothing."""
        if os.getpid() != self._owner or self._is_finished:
            return
        self._is_finished = True
        self._patches.undo()
        if self._progress is not None:
            self._progress.close()
        if self._connection is not None and self._recorder is not None:
            self._write_outputs(self._connection, self._recorder, failed=failed)
        elif self._is_first and not failed:
            self._say_nothing_managed()
        if self._is_first and self._run.writer not in (0, self._owner):
            kept_summary.show(self._run, self._options)
        self._run.remove()

    def lacking_room(self) -> str | None:
        """The room that the script's states lack, in a line; None: none, or it is not known."""
        if self._connection is None or self._recorder is None:
            return None
        return pool_advice.lacking_room(
            self._connection.client, model_is_complete=self._recorder.iterating
        )

    def start_ranks(self, start: Callable[[], T], *, waits: bool) -> T:
        """Calls `start`, which starts processes. `waits`: it returns when they have ended.

        If this process waits and has no chunks, it ends its session before, so that they have all
        memory, and opens a new one when it needs it.
        """
        with training.announced():
            return self._start_ranks(start, waits=waits)

    def _start_ranks(self, start: Callable[[], T], *, waits: bool) -> T:
        connection, request = self._connection, self._options.request
        here = os.getpid() == self._owner and connection is not None
        if not here or not waits or request.job_name or self._has_trained():
            return start()
        assert connection is not None
        if not deferred_start.end():
            return start()
        self._connection = self._recorder = None
        result = start()
        FirstParameter(self._join)
        return result

    def _of_rank(self, request: SessionRequest) -> SessionRequest:
        """The request, with this process's rank if a launcher has started several `memtide run`."""
        if self._has_siblings or not self._is_first:
            return request
        rank = ranks.of_this_process()
        return replace(request, rank=rank.local, is_alone=True)

    def _announced(self) -> RunFolder:
        run = RunFolder.create()
        atexit.register(run.remove)
        options, request = self._options, self._options.request
        assert self._reached is not None
        # A budget is of one process.
        inherited = replace(
            request, pools=Pools(), budget=MemoryBudget(), socket_dir=self._reached.socket_dir
        )
        started = replace(options, request=inherited)
        run.announce(Inherited(started, options, os.getpid()))
        return run

    def _join(self) -> None:
        """Opens the session, in this process or in a forked child that has none yet."""
        if os.getpid() != self._owner:
            self._join_run(self._run)
            return
        try:
            self._open()
        except MemtideError as error:
            raise SystemExit(f"memtide: {error}") from None

    def _open(self) -> None:
        self._rank = ranks.of_this_process()
        options, own = self._options, self._options.request
        own = replace(
            own,
            ranks=self._rank.local_count,
            rank=self._rank.local,
            names_in=deferred_start.parameters_in,
        )
        reached = self._reached or reach(own)
        request = replace(own, budget=reached.request.budget)
        # All of a private daemon is this process's if no other one knows it.
        if reached.daemon is not None and (self._reached is None or not self._has_siblings):
            request = replace(request, ranks=1)
        self._reached = reached
        connection = self._connection = open_session(reached, request)
        shown = not options.quiet and self._rank.number == 0
        outputs = options.outputs if self._rank.number == 0 else Outputs()
        recorder = self._recorder = Recorder(
            connection.client,
            connection.socket_dir,
            outputs.tide_iteration if outputs.tide else None,
        )
        budget = self._budget = budget_of(connection)
        if budget is not None and shown:
            self._say_default(budget)
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if sys.stderr.isatty() and shown:
            self._progress = Progress(recorder)
        observer: Observer = FirstStep(self._progress or recorder, self._stepped)
        if not self._is_first and self._rank.number == 0:
            observer = kept_summary.KeptSummary(observer, self._keep_summary)
        stepping = self._stepping(connection)
        deferred_start.install(
            functools.partial(self._start, connection, observer, stepping, budget)
        )

    def _start(
        self,
        connection: Connection,
        observer: Observer,
        stepping: Stepping,
        budget: Budget | None,
    ) -> Runtime:
        """Called when torch is imported. From then on, states are put into chunks."""
        from memtide._activations.choices_by_block import ChoicesByBlock
        from memtide._torch_hooks import runtime

        plan = self._options.plan
        activations = plan.repeated_activations() if plan else ()
        return runtime.start(
            connection.client,
            observer,
            adopt_everything=True,
            chosen=ChoicesByBlock(activations, self._say) if activations else None,
            training=connection.training,
            shares_contents=connection.shares_contents,
            first_phases=deferred_start.share(self._options.sharing, self._say),
            stepping=stepping,
            budget=budget,
            say=self._say,
        )

    def _stepped(self) -> None:
        """An optimizer has stepped for the first time in this process."""
        assert self._connection is not None
        assert self._recorder is not None
        self._run.mark_trained()
        if self._rank.number == 0:
            self._run.claim_outputs()
        stats = self._connection.client.stats()
        if not self._options.quiet and not stats.chunks and not stats.acquires:
            summary_tables.print_if_nothing_managed(
                self._recorder.finish(), make_console(stderr=True), self._name()
            )

    def _name(self) -> str:
        return f"memtide, in rank {self._rank.number}," if self._rank.number else "memtide"

    def _forked(self) -> None:
        runtime = deferred_start.current()
        if self._connection is not None and runtime is not None:
            forked.entered(self._owner, runtime.memory.addresses.manages)

    def _say(self, line: str) -> None:
        if self._options.quiet or self._rank.number:
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

    def _say_nothing_managed(self) -> None:
        if not self._options.quiet and not self._run.has_trained:
            make_console(stderr=True).print(
                "memtide managed nothing: no optimizer stepped in this process, nor in a managed "
                "one that it started",
                style="yellow",
            )

    def _has_trained(self) -> bool:
        assert self._connection is not None
        assert self._recorder is not None
        stats = self._connection.client.stats()
        return bool(self._recorder.iterations or stats.chunks or stats.acquires)

    def _stepping(self, connection: Connection) -> Stepping:
        options = self._options
        outputs = options.outputs if self._rank.number == 0 else Outputs()
        stepping = Stepping(
            skip_non_finite=options.skip_non_finite,
            on_host=options.steps_on_host,
            records_blocks=outputs.records_blocks,
            # A trace and a picture are to show them.
            leaves_gradients=outputs.trace is None and outputs.tide is None,
        )
        if not options.request.job_name:
            return stepping
        job = self._job = NamedJob(
            connection.client,
            connection.socket_dir,
            options.request.job_name,
            resume=options.resume,
        )
        manifest = job.manifest
        if not ranks.are_on_other_nodes():
            job.settle(manifest)
        elif manifest is not None:
            resumed_step.set_resumed_step(manifest.steps)  # Until the nodes agree.
        return replace(stepping, commit=True, manifest=manifest)

    def _join_ranks(self) -> None:
        """The process group is there: a process that has a session already, and was no rank when it
        opened it, moves to the job of all ranks. Ranks on a device share none."""
        connection = self._connection
        if os.getpid() != self._owner or connection is None or self._rank.local_count > 1:
            return
        on_device = connection.client.properties.device_slots
        if on_device or ranks.of_this_process().local_count < 2:
            return
        try:
            self._open()
        except MemtideError as error:
            self._say(f"rank {self._rank.number} shares nothing with other ranks: {error}")

    def _agree(self) -> None:
        """The process group is there: the nodes of a named job agree on what it goes on from."""
        if os.getpid() != self._owner or not ranks.are_on_other_nodes():
            return
        from memtide._resume import agree_across_nodes

        self._first.come()
        if self._job is None or self._has_agreed:
            return
        self._has_agreed = True
        job = self._job
        exchange = agree_across_nodes.agree(job.committed, training.own_id(), wanted=job.is_wanted)
        job.settle(exchange.manifest, is_here=not exchange.receives)
        runtime = deferred_start.current()
        assert runtime is not None and runtime.resumed_job is not None
        runtime.resumed_job.go_on_from(exchange)

    def _summary(self, recorder: Recorder) -> Summary:
        runtime = deferred_start.current()
        kinds = runtime.memory.arenas.bytes_by_kind() if runtime is not None else {}
        return recorder.finish(
            self._budget.as_json() if self._budget else None,
            {kind.name.lower(): size_bytes for kind, size_bytes in kinds.items()},
        )

    def _keep_summary(self) -> None:
        if self._recorder is None or self._run.writer != os.getpid():
            return
        # Where the daemon restarts, or the disk is full, the last one stays.
        with contextlib.suppress(MemtideError, OSError):
            self._run.keep_summary(self._summary(self._recorder))

    def _write_outputs(self, connection: Connection, recorder: Recorder, *, failed: bool) -> None:
        console = make_console(stderr=True)
        try:
            if not recorder.iterations and (not self._is_first or self._run.has_trained):
                return
            if failed and not self._has_trained():
                return
            summary = self._summary(recorder)
        except MemtideError as error:
            console.print(
                f"memtide: no summary, as the daemon does not answer: {error}", markup=False
            )
            return
        quiet, outputs = self._options.quiet, self._options.outputs
        if self._rank.number:
            return
        writes = self._run.claim_outputs()
        # The file comes first: printing fails if the reader of the output has ended.
        plan = self._options.plan
        if writes:
            outputs.write_stats(summary, plan)
        if not quiet:
            summary_tables.print_summary(summary, console)
            if plan is not None:
                planned_run.print_comparison(plan, summary, console)
            if not self._options.request.chunk_bytes:
                pool_advice.print_chunk_size(connection.client, console)
            pool_advice.print_steps_on_host(summary, console)
            # The node's daemon is not the user's to enlarge, and a budget sizes the pools itself.
            if not failed and connection.daemon is not None and not connection.budget.named():
                larger_pool.print_gain(summary, connection, console)
        if writes:
            outputs.write_pictures(summary, connection, console)
            self._run.mark_written()
        elif outputs.flags:
            console.print(
                f"memtide: {', '.join(outputs.flags)}: of process {self._run.writer}, which "
                f"trained before this one ({os.getpid()})",
                style="dim",
            )
