"""`memtide run`: its options, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from memtide._daemon.connect import SessionRequest
from memtide._daemon.memory_budget import MemoryBudget
from memtide._daemon.private_daemon import Pools
from memtide._launch.program import Program
from memtide._trace.files import RAW_SUFFIX
from memtide._util.parser import Parser, add_socket_dir
from memtide._util.sizes import parse_size
from memtide.errors import UsageError

_AN_HOUR_S = 3600
_A_DAY_S = 86400


def add_arguments(run: Parser) -> None:
    """Adds the options of `memtide run` to its parser."""
    run.usage = "memtide run [options] SCRIPT [ARGS]"
    run.description = (
        "Runs SCRIPT as `python SCRIPT ARGS...` would, with parameters, gradients and "
        "optimizer state in chunks. The session is with the node's daemon if it answers and no "
        "pool is given; else a private daemon starts, and ends with the script. Processes in "
        "Python that SCRIPT starts (torchrun, trl, multiprocessing) are managed in the same way "
        "if they train. They share one daemon, and each rank is on a GPU of its own if there are "
        "several. Sizes: 512MiB, 2GiB, 1.5GB."
    )
    _add_pools(run)
    run.add_argument(
        "--plan",
        type=Path,
        metavar="FILE.json",
        help="of `memtide plan --output`: its pools, chunk size and choice for activations; at the "
        "end, predicted against measured",
    )
    _add_budget(run)
    session = run.add_argument_group("session")
    _add_session(session)
    _add_job(session)
    _add_shared_layers(session)
    add_socket_dir(session)
    _add_output(run)
    run.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as with `python -m`",
    )
    run.add_argument(
        "script", metavar="SCRIPT", help="path of a script, or a Python command on PATH"
    )
    arguments = run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    arguments.required = False  # argparse would ask for them, too, where SCRIPT is missing.
    run.set_defaults(command=_prepare)


def _add_pools(run: Parser) -> None:
    pools = run.add_argument_group("pools of a private daemon")
    pools.add_argument("--device-pool", metavar="SIZE", help="memory of each device; 0: no device")
    pools.add_argument(
        "--device",
        metavar="DEVICE",
        help="cuda (all GPUs), cuda:1 or a GPU's UUID, several with commas, emulated, emulated:2 "
        "or none (default: all GPUs that are visible)",
    )
    pools.add_argument("--host-pool", metavar="SIZE", help="shared host memory")
    pools.add_argument("--ssd-pool", metavar="SIZE", help="files on SSD; 0: none")
    pools.add_argument(
        "--ssd-dir",
        type=Path,
        metavar="DIR",
        help="parent of the directory that this run creates for these files",
    )


def _add_budget(run: Parser) -> None:
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


def _add_session(session: argparse._ActionsContainer) -> None:
    session.add_argument(
        "--chunk-size",
        metavar="SIZE",
        default="0",
        help="a multiple of 2 MiB (default: a 24th of the host pool, at most a 12th of the "
        "device pool and 64 MiB)",
    )
    session.add_argument(
        "--skip-non-finite",
        action="store_true",
        help="skip optimizer steps whose gradients are infinite or NaN",
    )
    session.add_argument(
        "--optimizer-on",
        choices=("device", "host"),
        default="device",
        help="host: the CPU computes a GPU's optimizer steps beside backward, and their states "
        "never cross the link; in fp32 a step is to 1e-6 that of the GPU (default: device, to the "
        "bit, but with --job and --skip-non-finite)",
    )


def _add_job(session: argparse._ActionsContainer) -> None:
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
        help="how long the job remains after its script has ended (default: 3600; with --durable "
        "86400, a day, which begins anew when the machine has started again)",
    )
    session.add_argument(
        "--durable",
        action="store_true",
        help="each step of --job is on the SSD before the script goes on, and can be resumed after "
        "a power cut",
    )
    session.add_argument(
        "--durable-every",
        type=int,
        metavar="STEPS",
        help="the same for each of so many steps, which costs less",
    )
    session.add_argument(
        "--resume", action="store_true", help="resume from the last committed step of --job"
    )


def _add_shared_layers(session: argparse._ActionsContainer) -> None:
    session.add_argument(
        "--share",
        metavar="PATH",
        help="the layers in this module of the script's model, such as model.blocks, share their "
        "parameters, gradients and optimizer states",
    )
    session.add_argument(
        "--delink-at-step",
        type=int,
        metavar="N",
        help="layers of --share have parameters of their own from the end of optimizer step N on",
    )


def _add_output(run: Parser) -> None:
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
    output.add_argument(
        "--trace-memory",
        action="store_true",
        help="with --trace: record what torch's allocator does in iterations 3 to 7, for "
        "`memtide explain --memory`",
    )
    output.add_argument("--quiet", action="store_true", help="no progress line, no summary")


def _prepare(flags: argparse.Namespace) -> Callable[[], int]:
    from memtide_methods.sharing.run_option import Sharing

    from memtide._launch import run
    from memtide._launch.options import Options
    from memtide._launch.outputs import Outputs
    from memtide._launch.planned_run import planned_pools
    from memtide._plan_file import plan_file

    _check(flags)
    pools = Pools(
        device_bytes=_size(flags.device_pool),
        host_bytes=_size(flags.host_pool),
        ssd_bytes=_size(flags.ssd_pool),
        ssd_dir=flags.ssd_dir.absolute() if flags.ssd_dir else None,
        device=flags.device,
    )
    budget = MemoryBudget(_size(flags.device_memory), _size(flags.host_memory))
    plan = None if flags.plan is None else plan_file.load(flags.plan)
    if plan is not None and budget.named():
        raise UsageError("--plan has chosen the pools: leave out --host-memory and --device-memory")
    budget.check(pools)
    chunk_bytes = parse_size(flags.chunk_size)
    if plan is not None:
        chunk_bytes = chunk_bytes or plan.choice.chunk_bytes
        # A daemon that runs already has its pools.
        pools = pools if flags.socket_dir else planned_pools(plan, pools)
    if chunk_bytes % 2**21:
        raise UsageError(f"--chunk-size {flags.chunk_size} is not a multiple of 2 MiB")
    durable_every = _durable_every(flags)
    lives_s = flags.time_to_live or (_A_DAY_S if durable_every else _AN_HOUR_S)
    return run.prepare(
        Program(flags.script, flags.arguments, is_module=flags.is_module),
        Options(
            request=SessionRequest(
                pools=pools,
                budget=budget,
                socket_dir=flags.socket_dir,
                chunk_bytes=chunk_bytes,
                job_name=flags.job,
                time_to_live_s=lives_s if flags.job else 0,
                durable_every=durable_every,
            ),
            outputs=Outputs(
                stats=flags.stats,
                tide=flags.tide,
                tide_iteration=flags.tide_iteration,
                trace=flags.trace,
                records_blocks=flags.trace_memory,
            ),
            quiet=flags.quiet,
            skip_non_finite=flags.skip_non_finite,
            steps_on_host=flags.optimizer_on == "host",
            resume=flags.resume,
            sharing=Sharing(flags.share, flags.delink_at_step) if flags.share else None,
            plan=plan,
            plan_file=flags.plan.absolute() if flags.plan else None,
        ),
    )


def _check(flags: argparse.Namespace) -> None:
    """UsageError: an option has no such value, or needs another one."""
    if flags.trace_memory and not str(flags.trace or "").endswith(RAW_SUFFIX):
        raise UsageError(f"--trace-memory needs a trace that keeps it: --trace FILE{RAW_SUFFIX}")
    if flags.tide_iteration < 1:
        raise UsageError("--tide-iteration counts from 1")
    if flags.time_to_live is not None and flags.time_to_live < 1:
        raise UsageError("--time-to-live is at least 1 second")
    if flags.durable_every is not None and flags.durable_every < 1:
        raise UsageError("--durable-every is at least 1 step")
    if _durable_every(flags) and not flags.job:
        raise UsageError("--durable needs the name of a job: --job NAME")
    if flags.delink_at_step is not None and not flags.share:
        raise UsageError("--delink-at-step needs layers that share: --share PATH")
    if flags.delink_at_step is not None and flags.delink_at_step < 1:
        raise UsageError("--delink-at-step counts from 1")


def _durable_every(flags: argparse.Namespace) -> int:
    return flags.durable_every or int(flags.durable)


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)
