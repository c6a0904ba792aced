"""A Python process that a process of a run has started, in whatever way: it is managed, too.

It joins the run when it makes its first parameter. If it cannot, it trains as without memtide, and
says so at its first step.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from memtide._launch import ranks
from memtide._launch.first_parameter import FirstParameter
from memtide._launch.on_path import memtide_unmanaged
from memtide._launch.run_folder import RunFolder
from memtide._resume import resumed_step
from memtide.errors import MemtideError, ResourceExhausted, Unavailable

_is_arranged = False


def arrange() -> None:
    """It is settled how this process is managed: `torch_imported` does nothing."""
    global _is_arranged
    _is_arranged = True


def torch_imported() -> None:
    """Torch is imported in this process, which has a run's folder in its environment."""
    if not _is_arranged:
        arrange()
        first = FirstParameter(
            lambda: join(RunFolder(Path(os.environ[memtide_unmanaged.VARIABLE])))
        )
        resumed_step.settle_by(first.come)


def join(run: RunFolder) -> None:
    """Makes this process one of the run, with a session of its own."""
    try:
        _join(run)
    except FileNotFoundError:
        memtide_unmanaged.say_at_first_step("the memtide run that started it has ended")
    except ResourceExhausted as error:
        memtide_unmanaged.say_at_first_step(
            f"{error}; other processes of the run have the rest: let the process that starts this "
            "one make no parameters, or give the run larger pools"
        )
    except MemtideError as error:
        memtide_unmanaged.say_at_first_step(str(error))


def _join(run: RunFolder) -> None:
    # These import much that a process does not need that never trains.
    from memtide._daemon.private_daemon import answers
    from memtide._launch.managed_process import Managed
    from memtide._launch.options import Inherited

    inherited: Inherited = run.read()
    options, request = inherited.options, inherited.options.request
    if request.job_name and ranks.of_this_process().local_count < 2:
        raise Unavailable(
            f"the job '{request.job_name}' is of one process, or of ranks, and this is none"
        )
    if request.socket_dir is not None and not answers(request.socket_dir):
        # The process of `memtide run` may have become another program: this one.
        if inherited.pid != os.getpid():
            raise FileNotFoundError
        options = inherited.first
    managed = Managed(options, join, run)
    atexit.register(managed.finish)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util

        # A forked process of multiprocessing ends without the functions of atexit.
        util.Finalize(None, managed.finish, exitpriority=100)
