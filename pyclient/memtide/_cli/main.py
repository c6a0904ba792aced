"""The command line: `memtide run | plan | replay | status | idle | admin | trace | explain |
doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memtide_plan.command import plan

from memtide import __version__
from memtide._activations.explain import TracedActivations
from memtide._capi.locate import default_socket_dir
from memtide._cli import admin, run
from memtide._daemon import private_daemon
from memtide._trace import explain
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._trace.explain_memory import explain_memory
from memtide._trace.files import RAW_SUFFIX
from memtide._util.parser import Parser, add_socket_dir
from memtide.errors import MemtideError, NotInstalled, PermissionDenied, Unavailable, UsageError

_EXIT_FAILURE = 1
_EXIT_USAGE = 2


_Action = Callable[[], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status. Exceptions of a script pass through."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    action: _Action
    try:
        action = flags.command(flags)
        sys.stdout.flush()
    except BrokenPipeError:  # The reader of the output (head, less) has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print(f"memtide: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except MemtideError as error:
        print(f"memtide: {error}", file=sys.stderr)
        if isinstance(error, NotInstalled):
            print("memtide: `memtide doctor` says what is missing", file=sys.stderr)
        return _EXIT_FAILURE
    return action()


def _parser() -> Parser:
    parser = Parser(
        prog="memtide", description="Train models larger than the memory they are given."
    )
    parser.add_argument("--version", action="version", version=f"memtide {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add_arguments(
        commands.add_parser("run", help="run a PyTorch script with its states in chunks")
    )
    plan.add_arguments(
        commands.add_parser("plan", help="say whether a model trains on a machine, and how fast")
    )
    _add_replay(commands)
    status = commands.add_parser("status", help="show the node's pools, states and sessions")
    add_socket_dir(status)
    status.set_defaults(command=_status)
    idle = commands.add_parser(
        "idle",
        help="say what a restart of the daemon would end",
        description="Exit status: 0 if a restart or a stop of the daemon ends nothing, 3 if "
        "sessions are open, 4 if only jobs wait for a script that resumes them, which outlive a "
        "restart under systemd, but not a stop.",
    )
    add_socket_dir(idle)
    idle.set_defaults(command=_idle)
    admin.add_arguments(
        commands.add_parser("admin", help="list and end jobs, drain the node, set quotas"),
        _sockets_of_daemon,
    )
    _add_trace(commands)
    _add_explain(commands)
    doctor = commands.add_parser("doctor", help="check this machine, and name what to do")
    doctor.add_argument("--ssd-dir", type=Path, metavar="DIR", help="directory of the SSD pool")
    doctor.add_argument(
        "--measure",
        nargs="?",
        const="",
        metavar="FILE.json",
        help="measure this machine in 20 seconds and write the file that `memtide plan --machine "
        "this` reads, or FILE.json",
    )
    doctor.set_defaults(command=_doctor)
    return parser


def _add_replay(commands: argparse._SubParsersAction[Parser]) -> None:
    # All arguments go to memtide-replay, --help too: no character introduces an option here.
    replay = commands.add_parser(
        "replay",
        help="replay traces under other policies, and compute a bound that none can beat",
        prefix_chars="\0",
        add_help=False,
    )
    replay.add_argument("arguments", nargs="*")
    replay.set_defaults(command=_replay)


def _add_trace(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "trace", help="write a trace of a job: its uses, transfers and stalls"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write a job's latest iterations to a file",
        description="Writes the latest iterations of an open job: as JSON for ui.perfetto.dev or "
        f"chrome://tracing, or as {RAW_SUFFIX} for `memtide explain` and `memtide replay`.",
    )
    export.add_argument("--raw", action="store_true", help=f"write {RAW_SUFFIX} to any FILE")
    _add_trace_source(export)
    export.add_argument("file", type=Path, metavar="FILE", help=f".json, or {RAW_SUFFIX}")
    export.set_defaults(command=_export)


def _add_explain(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what happened to a chunk and why, what was planned for activations, or what "
        "torch's allocator did",
    )
    _add_trace_source(parser)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="what torch's allocator did in the iterations that `memtide run --trace-memory` "
        "recorded, how alike they are, and what share of it memtide manages",
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CHUNK|MODULE|activations",
        help="a chunk's number in the trace, or its id: its history, newest first; the path of a "
        "module, or of a parameter: that of each chunk that its passes use; `activations`: "
        "what each block saves for backward, and what the plan does with it",
    )
    parser.add_argument(
        "block", nargs="?", metavar="BLOCK", help="after `activations`: only this block's, by name"
    )
    parser.set_defaults(command=_explain)


def _add_trace_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job", type=int, metavar="N", help="number of the job (default: the only one)"
    )
    add_socket_dir(parser)
    parser.add_argument(
        "--trace", type=Path, metavar=f"FILE{RAW_SUFFIX}", help="read this file, not a daemon"
    )


def _replay(flags: argparse.Namespace) -> _Action:
    from memtide._cli import replay

    status = replay.replay(flags.arguments)
    return lambda: status


def _status(flags: argparse.Namespace) -> _Action:
    from memtide._cli import status
    from memtide._util.console import make_console

    status.print_status(_sockets_of_daemon(flags), make_console())
    return lambda: 0


def _idle(flags: argparse.Namespace) -> _Action:
    from memtide._cli import idle

    exit_status = idle.print_what_would_end(_sockets_of_daemon(flags))
    return lambda: exit_status


def _export(flags: argparse.Namespace) -> _Action:
    trace_files.check_output(flags.file, raw=flags.raw)
    trace_files.export(_raw_trace(flags), flags.file, raw=flags.raw)
    return lambda: 0


def _explain(flags: argparse.Namespace) -> _Action:
    if flags.memory == (flags.what is not None):
        raise UsageError("explain either CHUNK, MODULE or `activations`, or --memory")
    if flags.memory:
        for line in explain_memory(traces.parse(_raw_trace(flags))):
            print(line)
        return lambda: 0
    about_activations = flags.what == "activations"
    if not about_activations and flags.block is not None:
        raise UsageError("BLOCK comes after `activations`")
    trace = traces.parse(_raw_trace(flags))
    activations = TracedActivations(trace)
    if flags.what.isdecimal():
        lines = explain.explain(trace, int(flags.what), activations.held_by)
    elif not about_activations:
        lines = _explained_chunks(trace, explain.chunks_of(trace, flags.what), activations)
    elif flags.block is None:
        lines = activations.explain()
    else:
        lines = activations.explain_block(flags.block)
    for line in lines:
        print(line)
    return lambda: 0


def _explained_chunks(
    trace: traces.Trace, numbers: Sequence[int], activations: TracedActivations
) -> Iterator[str]:
    """The lines of each of these chunks, with an empty one between two."""
    for position, number in enumerate(numbers):
        if position:
            yield ""
        yield from explain.explain(trace, number, activations.held_by)


def _raw_trace(flags: argparse.Namespace) -> bytes:
    if flags.trace is None:
        return traces.fetch(_sockets_of_daemon(flags), flags.job)
    if flags.job is not None or flags.socket_dir is not None:
        raise UsageError("--trace names a file: leave out --job and --socket-dir")
    return trace_files.load(flags.trace)


def _sockets_of_daemon(flags: argparse.Namespace) -> Path:
    socket_dir: Path = flags.socket_dir or default_socket_dir()
    refused = private_daemon.refusal(socket_dir)
    if isinstance(refused, PermissionError):
        raise PermissionDenied(
            f"permission denied at {socket_dir}: put this user into the group of the daemon"
        )
    if refused is not None:
        raise Unavailable(
            f"no daemon at {socket_dir}; start one with memtided --socket-dir {socket_dir}, or "
            "name the --socket-dir of a run that was started with one"
        )
    return socket_dir


def _doctor(flags: argparse.Namespace) -> _Action:
    from memtide._cli import doctor
    from memtide._util.console import make_console

    if flags.measure is not None:
        from memtide_plan.command import measure

        measure.print_measurement(flags.ssd_dir, flags.measure, make_console())
        return lambda: 0
    status = doctor.print_diagnosis(flags.ssd_dir, make_console())
    return lambda: status
