"""`memtide run`: prepares and runs a program, or a launcher that starts several processes."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from memtide._daemon import least_pools, training
from memtide._daemon.connect import SessionRequest, find_or_start, reach
from memtide._launch import started_process
from memtide._launch.distributed_launchers import Launcher, launcher_in
from memtide._launch.managed_process import Managed
from memtide._launch.options import Options
from memtide._launch.program import Program, run_program
from memtide._launch.uncaught import uncaught
from memtide._plot import memory_plot
from memtide._trace import files as trace_files
from memtide._util.output_file import check_writable
from memtide.errors import UsageError


def prepare(program: Program, options: Options) -> Callable[[], int]:
    """Opens a session and installs the hooks. The function that it returns runs the program.

    The program's exceptions and SystemExit pass through that function, after the summary.
    """
    _check(options)
    options = replace(options, outputs=options.outputs.absolute())
    training.announce()
    launcher = launcher_in(program)
    if launcher is not None:
        return _prepare_ranks(launcher, options)
    located = program.located()
    started_process.arrange()
    managed = Managed(options, started_process.join)

    def run() -> int:
        with uncaught(managed.lacking_room), managed:
            run_program(located)
        return 0

    return run


def _check(options: Options) -> None:
    outputs = options.outputs
    if outputs.stats is not None:
        check_writable(outputs.stats)
    if outputs.tide is not None:
        memory_plot.check_output(outputs.tide)
    if outputs.trace is not None:
        trace_files.check_output(outputs.trace)
    ssd_dir = options.request.pools.ssd_dir
    if ssd_dir is not None and not ssd_dir.parent.is_dir():
        raise UsageError(f"--ssd-dir {ssd_dir}: there is no directory {ssd_dir.parent}")
    if options.resume and not options.request.job_name:
        raise UsageError("--resume needs the name of a job: --job NAME")
    if options.sharing is not None and options.request.job_name:
        raise UsageError(
            "--share does not go with --job: a script that is resumed would make its optimizer "
            "with other parameters than the job has; call memtide.share_layers in the script"
        )


def _rank_flags(request: SessionRequest, ranks: int) -> dict[str, object]:
    """Flags of each of these ranks: the sockets of the daemon that they share."""
    pools = request.pools
    # Without an SSD, host memory is the home tier: a chunk owns its slot there until it is freed,
    # so ranks could not make room for each other (decision 3).
    if pools.ssd_bytes == 0:
        raise UsageError(
            "several processes can share memory only with an SSD pool, to evict chunks to"
        )
    # How many devices there are is known when the daemon runs: each rank has one, alone or not.
    least_pools.check(pools, ranks, request.chunk_bytes, ranks_on_device=1)
    if request.job_name:
        return {"socket-dir": reach(request).socket_dir}
    socket_dir, daemon = find_or_start(request)
    if daemon is not None:
        atexit.register(daemon.stop)
    return {"socket-dir": socket_dir}


def _prepare_ranks(launcher: Launcher, options: Options) -> Callable[[], int]:
    if options.request.budget.named():
        raise UsageError(
            "--host-memory and --device-memory limit one process and its daemon, and a launcher "
            "starts several: set the pools that they share, with --host-pool and --device-pool"
        )
    request = options.request
    named = bool(request.job_name)
    flags: dict[str, object] = {
        **_rank_flags(request, launcher.ranks),
        **({"job": request.job_name, "time-to-live": request.time_to_live_s} if named else {}),
        "durable-every": request.durable_every or None,
        "chunk-size": request.chunk_bytes,
        "stats": options.outputs.stats,
        "tide": options.outputs.tide,
        "tide-iteration": options.outputs.tide_iteration,
        "trace": options.outputs.trace,
        **(options.sharing.flags() if options.sharing else {}),
        "plan": options.plan_file,
        "optimizer-on": "host" if options.steps_on_host else None,
    }
    command = [sys.executable, "-u", "-P", "-m", "memtide", "run"]
    command += [f"--{name}={value}" for name, value in flags.items() if value is not None]
    for name in ("skip_non_finite", "quiet", "resume"):
        if getattr(options, name):
            command.append("--" + name.replace("_", "-"))
    if options.outputs.records_blocks:
        command.append("--trace-memory")

    if named:
        # The store of torchelastic's agent keeps the addresses of ranks that have ended, and those
        # of the next attempt try to connect there. Without it each attempt has a new store.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    def run() -> int:
        launcher.launch(command)
        return 0

    return run
