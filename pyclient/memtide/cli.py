"""The command line: `memtide run | status | trace | explain | doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from memtide import __version__, explain, trace, trace_file
from memtide.connect import Wish
from memtide.daemon import Pools
from memtide.errors import MemtideError, NotInstalled, UsageError
from memtide.script import Program
from memtide.sizes import parse_size
from memtide.trace_file import RAW_SUFFIX

_EXIT_FAILURE = 1
_EXIT_USAGE = 2


_Action = Callable[[], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status. What a script raises or exits with passes."""
    parser = _parser()
    told = parser.parse_args(arguments)
    action: _Action
    try:
        action = told.command(told)
        sys.stdout.flush()
    except BrokenPipeError:  # Whoever reads (head, less) has seen enough.
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
    doctor = commands.add_parser("doctor", help="check what this machine lacks, and say the remedy")
    doctor.add_argument("--ssd-dir", type=Path, metavar="DIR", help="directory of the SSD pool")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    # Another program's options: none of them is read here.
    replay = commands.add_parser(
        "replay",
        help="play traces again under other policies, and find the least that any could move",
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
        "optimizer state in chunks. Uses the node's daemon if one answers and no pool is named; "
        "else starts a private one that ends with the script. Where SCRIPT is torchrun, or "
        "accelerate launch, each process that it starts is run so, with one daemon for all, or "
        "where there are several GPUs, one for each, which divide what these pools say. "
        "Sizes: 512MiB, 2GiB, 1.5GB.",
    )
    pools = run.add_argument_group("pools of a private daemon")
    pools.add_argument("--device-pool", metavar="SIZE", help="of the device; 0: no device")
    pools.add_argument(
        "--device",
        metavar="DEVICE",
        help="cuda, cuda:1, a GPU's UUID, cuda:rank (each of several processes the GPU of its "
        "number), emulated or none (default: a GPU if there is one; cuda:rank if there are more)",
    )
    pools.add_argument("--host-pool", metavar="SIZE", help="shared host memory")
    pools.add_argument("--ssd-pool", metavar="SIZE", help="files on SSD; 0: none")
    pools.add_argument(
        "--ssd-dir",
        type=Path,
        metavar="DIR",
        help="where these files are, in a directory of this run's own",
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
        help="step optimizers in the script's process, to the same bits as without memtide",
    )
    session.add_argument(
        "--skip-non-finite",
        action="store_true",
        help="let the daemon make no optimizer step from gradients that are infinite or NaN",
    )
    session.add_argument(
        "--job", metavar="NAME", default="", help="keep each step under this name; needs a daemon"
    )
    session.add_argument(
        "--time-to-live",
        type=int,
        metavar="SECONDS",
        default=3600,
        help="how long a job outlives its script (default: 3600)",
    )
    session.add_argument(
        "--resume", action="store_true", help="go on from the last step that --job has kept"
    )
    _add_socket_dir(session)
    output = run.add_argument_group("output")
    output.add_argument("--stats", type=Path, metavar="FILE.json", help="write what the run cost")
    output.add_argument(
        "--tide", type=Path, metavar="FILE", help="draw one iteration's memory: .png, or .html"
    )
    output.add_argument(
        "--tide-iteration",
        type=int,
        default=6,
        metavar="N",
        help="which one (default: 6, by when the order is known; of shorter runs the third)",
    )
    output.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help=f"write the last iterations: .json for viewers, {RAW_SUFFIX} for explain and replay",
    )
    output.add_argument("--quiet", action="store_true", help="no progress line, no summary")
    run.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as after `python -m`",
    )
    run.add_argument(
        "script", metavar="SCRIPT", help="its path, or a command on PATH that is in Python"
    )
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    run.set_defaults(command=_run)


def _add_trace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "trace", help="what a job used when, and what memtide did about it"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write a job's latest iterations to a file",
        description="Writes the latest iterations of a job that is open: for ui.perfetto.dev or "
        f"chrome://tracing, or as they are ({RAW_SUFFIX}), for `memtide explain` and for replay.",
    )
    export.add_argument("--raw", action="store_true", help=f"as {RAW_SUFFIX}, whatever FILE is")
    _add_trace_source(export)
    export.add_argument("file", type=Path, metavar="FILE", help=f".json, or {RAW_SUFFIX}")
    export.set_defaults(command=_export)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain", help="say in words what happened to a chunk and why, newest first"
    )
    _add_trace_source(parser)
    parser.add_argument(
        "chunk", type=int, metavar="CHUNK", help="its number in the trace, or its id"
    )
    parser.set_defaults(command=_explain)


def _add_trace_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job", type=int, metavar="N", help="of several jobs (default: the only one)"
    )
    _add_socket_dir(parser)
    parser.add_argument(
        "--trace", type=Path, metavar=f"FILE{RAW_SUFFIX}", help="of this file, not of a daemon"
    )


def _add_socket_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--socket-dir", type=Path, metavar="DIR", help="the daemon's sockets")


def _run(told: argparse.Namespace) -> _Action:
    from memtide import launch
    from memtide.managed import Options, Outputs

    pools = Pools(
        device_bytes=_size(told.device_pool),
        host_bytes=_size(told.host_pool),
        ssd_bytes=_size(told.ssd_pool),
        ssd_dir=told.ssd_dir.absolute() if told.ssd_dir else None,
        device=told.device,
    )
    chunk_bytes = parse_size(told.chunk_size)
    if chunk_bytes % 2**21:
        raise UsageError(f"--chunk-size {told.chunk_size} is not a multiple of 2 MiB")
    if told.tide_iteration < 1:
        raise UsageError("--tide-iteration counts from 1")
    if told.time_to_live < 1:
        raise UsageError("--time-to-live is at least 1 second")
    if told.skip_non_finite and told.exact:
        raise UsageError(
            "--skip-non-finite is for steps that the daemon makes, and --exact asks for none"
        )
    if told.job and told.exact:
        raise UsageError("--job keeps steps that the daemon makes, and --exact asks for none")
    return launch.prepare(
        Program(told.script, told.arguments, is_module=told.is_module),
        Options(
            wish=Wish(
                pools=pools,
                socket_dir=told.socket_dir,
                chunk_bytes=chunk_bytes,
                job_name=told.job,
                time_to_live_s=told.time_to_live if told.job else 0,
            ),
            outputs=Outputs(
                stats=told.stats,
                tide=told.tide,
                tide_iteration=told.tide_iteration,
                trace=told.trace,
            ),
            quiet=told.quiet,
            exact=told.exact,
            skip_non_finite=told.skip_non_finite,
            resume=told.resume,
        ),
    )


def _replay(told: argparse.Namespace) -> _Action:
    from memtide import replay

    status = replay.replay(told.arguments)
    return lambda: status


def _status(told: argparse.Namespace) -> _Action:
    from memtide import status

    status.print_status(told.socket_dir, Console(highlight=False))
    return lambda: 0


def _export(told: argparse.Namespace) -> _Action:
    trace_file.check_output(told.file, raw=told.raw)
    trace_file.export(_raw_trace(told), told.file, raw=told.raw)
    return lambda: 0


def _explain(told: argparse.Namespace) -> _Action:
    for line in explain.explain(trace.parse(_raw_trace(told)), told.chunk):
        print(line)
    return lambda: 0


def _raw_trace(told: argparse.Namespace) -> bytes:
    if told.trace is None:
        return trace.fetch(told.socket_dir, told.job)
    if told.job is not None or told.socket_dir is not None:
        raise UsageError("--trace names a file: --job and --socket-dir are of a daemon")
    return trace_file.load(told.trace)


def _doctor(told: argparse.Namespace) -> _Action:
    from memtide import doctor

    status = doctor.print_diagnosis(told.ssd_dir, Console(highlight=False))
    return lambda: status


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)
