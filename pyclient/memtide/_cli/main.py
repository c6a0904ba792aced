"""The command line: `memtide run | replay | status | trace | explain | doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from memtide import __version__
from memtide._activations.explain import TracedActivations
from memtide._capi.locate import default_socket_dir
from memtide._launch.program import Program
from memtide._node.connect import SessionRequest
from memtide._node.memory_budget import MemoryBudget
from memtide._node.private_daemon import Pools, answers
from memtide._trace import explain
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._trace.files import RAW_SUFFIX
from memtide._util.sizes import parse_size
from memtide.errors import MemtideError, NotInstalled, Unavailable, UsageError

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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="memtide", description="Train models larger than the memory they are given."
    )
    parser.add_argument("--version", action="version", version=f"memtide {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_replay(commands)
    status = commands.add_parser("status", help="show the node's pools, states and sessions")
    _add_socket_dir(status)
    status.set_defaults(command=_status)
    _add_trace(commands)
    _add_explain(commands)
    doctor = commands.add_parser("doctor", help="check this machine, and name what to do")
    doctor.add_argument("--ssd-dir", type=Path, metavar="DIR", help="directory of the SSD pool")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    # All arguments go to memtide-replay, --help too: no character introduces an option here.
    replay = commands.add_parser(
        "replay",
        help="replay traces under other policies, and compute a bound that none can beat",
        prefix_chars="\0",
        add_help=False,
    )
    replay.add_argument("arguments", nargs="*")
    replay.set_defaults(command=_replay)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a PyTorch script with its states in chunks",
        description="Runs SCRIPT as `python SCRIPT ARGS...` would, with parameters, gradients and "
        "optimizer state in chunks. The session is with the node's daemon if it answers and no "
        "pool is given; else a private daemon starts, and ends with the script. If SCRIPT is "
        "torchrun or accelerate launch, each process that it starts runs in the same way. These "
        "processes share one daemon; with several GPUs, each has its own, and these daemons "
        "divide the host and SSD pools. Sizes: 512MiB, 2GiB, 1.5GB.",
    )
    pools = run.add_argument_group("pools of a private daemon")
    pools.add_argument("--device-pool", metavar="SIZE", help="device memory; 0: no device")
    pools.add_argument(
        "--device",
        metavar="DEVICE",
        help="cuda, cuda:1, a GPU's UUID, cuda:rank (each rank uses the GPU of its number), "
        "emulated or none (default: the GPU if there is one; cuda:rank if there are several)",
    )
    pools.add_argument("--host-pool", metavar="SIZE", help="shared host memory")
    pools.add_argument("--ssd-pool", metavar="SIZE", help="files on SSD; 0: none")
    pools.add_argument(
        "--ssd-dir",
        type=Path,
        metavar="DIR",
        help="parent of the directory that this run creates for these files",
    )
    budget = run.add_argument_group("budget", "limits on all that a script and memtide use")
    budget.add_argument(
        "--host-memory",
        metavar="SIZE",
        help="host memory of the script's process and of its private daemon together: states, "
        "activations, pools and the framework; excludes --host-pool (default: what the memory "
        "limit of this process's cgroup leaves, if it has one)",
    )
    budget.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="the same for the device; excludes --device-pool",
    )
    session = run.add_argument_group("session")
    session.add_argument(
        "--chunk-size",
        metavar="SIZE",
        default="0",
        help="a multiple of 2 MiB (default: a 24th of the host pool, at most a 12th of the "
        "device pool and 64 MiB)",
    )
    session.add_argument(
        "--exact",
        action="store_true",
        help="step optimizers in the script's process, with the same bits as without memtide",
    )
    session.add_argument(
        "--skip-non-finite",
        action="store_true",
        help="skip optimizer steps of the daemon if gradients are infinite or NaN",
    )
    session.add_argument(
        "--job",
        metavar="NAME",
        default="",
        help="commit each step under this name, for --resume; needs the node's daemon",
    )
    session.add_argument(
        "--time-to-live",
        type=int,
        metavar="SECONDS",
        default=3600,
        help="how long the job remains after its script has ended (default: 3600)",
    )
    session.add_argument(
        "--resume", action="store_true", help="resume from the last committed step of --job"
    )
    _add_socket_dir(session)
    output = run.add_argument_group("output")
    output.add_argument("--stats", type=Path, metavar="FILE.json", help="write the cost of the run")
    output.add_argument(
        "--tide",
        type=Path,
        metavar="FILE",
        help="draw one iteration's memory: .png, or an interactive .html",
    )
    output.add_argument(
        "--tide-iteration",
        type=int,
        default=6,
        metavar="N",
        help="the iteration to draw (default: 6, when the access predictor has learned; if the run "
        "is shorter, the third)",
    )
    output.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace of the last iterations: .json for viewers, "
        f"{RAW_SUFFIX} for explain and replay",
    )
    output.add_argument("--quiet", action="store_true", help="no progress line, no summary")
    run.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as with `python -m`",
    )
    run.add_argument(
        "script", metavar="SCRIPT", help="path of a script, or a Python command on PATH"
    )
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    run.set_defaults(command=_run)


def _add_trace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what happened to a chunk and why, or what was planned for activations",
    )
    _add_trace_source(parser)
    parser.add_argument(
        "what",
        metavar="CHUNK|activations",
        help="a chunk's number in the trace, or its id: its history, newest first; `activations`: "
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
    _add_socket_dir(parser)
    parser.add_argument(
        "--trace", type=Path, metavar=f"FILE{RAW_SUFFIX}", help="read this file, not a daemon"
    )


def _add_socket_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--socket-dir", type=Path, metavar="DIR", help="directory of the daemon's sockets"
    )


def _run(flags: argparse.Namespace) -> _Action:
    from memtide._launch import run
    from memtide._launch.managed_process import Options, Outputs

    pools = Pools(
        device_bytes=_size(flags.device_pool),
        host_bytes=_size(flags.host_pool),
        ssd_bytes=_size(flags.ssd_pool),
        ssd_dir=flags.ssd_dir.absolute() if flags.ssd_dir else None,
        device=flags.device,
    )
    budget = MemoryBudget(_size(flags.device_memory), _size(flags.host_memory))
    budget.check(pools)
    chunk_bytes = parse_size(flags.chunk_size)
    if chunk_bytes % 2**21:
        raise UsageError(f"--chunk-size {flags.chunk_size} is not a multiple of 2 MiB")
    if flags.tide_iteration < 1:
        raise UsageError("--tide-iteration counts from 1")
    if flags.time_to_live < 1:
        raise UsageError("--time-to-live is at least 1 second")
    if flags.skip_non_finite and flags.exact:
        raise UsageError(
            "--skip-non-finite needs steps that the daemon computes; with --exact it computes none"
        )
    if flags.job and flags.exact:
        raise UsageError(
            "--job commits steps that the daemon computes; with --exact it computes none"
        )
    return run.prepare(
        Program(flags.script, flags.arguments, is_module=flags.is_module),
        Options(
            request=SessionRequest(
                pools=pools,
                budget=budget,
                socket_dir=flags.socket_dir,
                chunk_bytes=chunk_bytes,
                job_name=flags.job,
                time_to_live_s=flags.time_to_live if flags.job else 0,
            ),
            outputs=Outputs(
                stats=flags.stats,
                tide=flags.tide,
                tide_iteration=flags.tide_iteration,
                trace=flags.trace,
            ),
            quiet=flags.quiet,
            exact=flags.exact,
            skip_non_finite=flags.skip_non_finite,
            resume=flags.resume,
        ),
    )


def _replay(flags: argparse.Namespace) -> _Action:
    from memtide._cli import replay

    status = replay.replay(flags.arguments)
    return lambda: status


def _status(flags: argparse.Namespace) -> _Action:
    from memtide._cli import status

    status.print_status(_sockets_of_daemon(flags), Console(highlight=False))
    return lambda: 0


def _export(flags: argparse.Namespace) -> _Action:
    trace_files.check_output(flags.file, raw=flags.raw)
    trace_files.export(_raw_trace(flags), flags.file, raw=flags.raw)
    return lambda: 0


def _explain(flags: argparse.Namespace) -> _Action:
    about_activations = flags.what == "activations"
    if not about_activations and not flags.what.isdecimal():
        raise UsageError(f"'{flags.what}' is neither the number of a chunk nor `activations`")
    if not about_activations and flags.block is not None:
        raise UsageError("BLOCK comes after `activations`")
    trace = traces.parse(_raw_trace(flags))
    activations = TracedActivations(trace)
    if not about_activations:
        lines = explain.explain(trace, int(flags.what), activations.held_by)
    elif flags.block is None:
        lines = activations.explain()
    else:
        lines = activations.explain_block(flags.block)
    for line in lines:
        print(line)
    return lambda: 0


def _raw_trace(flags: argparse.Namespace) -> bytes:
    if flags.trace is None:
        return traces.fetch(_sockets_of_daemon(flags), flags.job)
    if flags.job is not None or flags.socket_dir is not None:
        raise UsageError("--trace names a file: leave out --job and --socket-dir")
    return trace_files.load(flags.trace)


def _sockets_of_daemon(flags: argparse.Namespace) -> Path:
    socket_dir: Path = flags.socket_dir or default_socket_dir()
    if not answers(socket_dir):
        raise Unavailable(
            f"no daemon at {socket_dir}; start one with memtided --socket-dir {socket_dir}, or "
            "name the --socket-dir of a run that was started with one"
        )
    return socket_dir


def _doctor(flags: argparse.Namespace) -> _Action:
    from memtide._cli import doctor

    status = doctor.print_diagnosis(flags.ssd_dir, Console(highlight=False))
    return lambda: status


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)
