"""`memtide run`: a program, unmodified, in chunks; or a launcher of several."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from memtide import gpu_each, trace_file
from memtide.connect import Wish, finds_daemon, reach
from memtide.errors import UsageError
from memtide.launchers import Launcher, launcher_in
from memtide.managed import Managed, Options
from memtide.script import Program, run_program


def prepare(program: Program, options: Options) -> Callable[[], int]:
    """Reaches a daemon and sets the hooks; what is returned runs the program.

    The program's own exceptions and SystemExit come out of that, after the summary.
    """
    _check(options)
    options = replace(options, outputs=options.outputs.absolute())
    launcher = launcher_in(program)
    if launcher is not None:
        return _prepare_ranks(launcher, options)
    located = program.located()
    # As launchers tell.
    ranks, rank = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    if ranks.isdecimal() and rank.isdecimal():
        wish = replace(options.wish, ranks=int(ranks), rank=int(rank))
        options = replace(options, wish=wish)
    managed = Managed(options, os.environ.get("RANK", "0"))

    def run() -> int:
        with managed:
            run_program(located)
        return 0

    return run


def _check(options: Options) -> None:
    outputs = options.outputs
    for output in (outputs.stats, outputs.tide):
        if output is not None and not output.absolute().parent.is_dir():
            raise UsageError(f"no directory to write '{output}' into")
    if outputs.trace is not None:
        trace_file.check_output(outputs.trace)
    if options.resume and not options.wish.job_name:
        raise UsageError("--resume takes up the job that --job names")


def _where_ranks_train(wish: Wish) -> dict[str, object]:
    """Flags for each of them: of a daemon that they share, or with which each starts its own."""
    pools = wish.pools
    if wish.socket_dir is None and not finds_daemon(wish) and gpu_each.is_wanted(pools):
        return {
            "device": gpu_each.GPU_OF_RANK,
            "device-pool": pools.device_bytes,
            "host-pool": pools.host_bytes,
            "ssd-pool": pools.ssd_bytes,
            "ssd-dir": pools.ssd_dir,
        }
    if pools.ssd_bytes == 0:
        raise UsageError("several processes share memory only with an SSD pool to make room in")
    socket_dir, daemon = reach(wish)
    if daemon is not None:
        atexit.register(daemon.stop)
    return {"socket-dir": socket_dir}


def _prepare_ranks(launcher: Launcher, options: Options) -> Callable[[], int]:
    if options.wish.job_name:
        raise UsageError("--job keeps the steps of one process, and a launcher starts several")
    flags: dict[str, object] = {
        **_where_ranks_train(options.wish),
        "chunk-size": options.wish.chunk_bytes,
        "stats": options.outputs.stats,
        "tide": options.outputs.tide,
        "tide-iteration": options.outputs.tide_iteration,
        "trace": options.outputs.trace,
    }
    command = [sys.executable, "-u", "-m", "memtide", "run"]
    command += [f"--{name}={value}" for name, value in flags.items() if value is not None]
    for name in ("exact", "skip_non_finite", "quiet"):
        if getattr(options, name):
            command.append("--" + name.replace("_", "-"))

    def run() -> int:
        launcher.launch(command)
        return 0

    return run
