"""Starting the runtime when the script imports torch. Imports torch only then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtide._native import Client
from memtide.chunk_size import Parameter
from memtide.importhook import after_import
from memtide.job_note import Note
from memtide.observer import Observer

if TYPE_CHECKING:
    from memtide.managed import Managed
    from memtide.runtime import Runtime

_started: Runtime | None = None


@dataclass(frozen=True)
class Stepping:
    """How optimizers step."""

    exact: bool = False  # In this process, to the same bits as without memtide.
    skip_non_finite: bool = False  # Steps with gradients that are infinite or NaN.
    keep: bool = False  # Each step is published for a process that goes on after this one.
    found: Note | None = None  # What this one goes on from.


def install(client: Client, observer: Observer, stepping: Stepping, managed: Managed) -> None:
    """Makes torch, when it is imported (or now, if it has been), put states into chunks, and start
    processes as `managed` says."""

    def start() -> None:
        global _started
        from memtide import runtime, spawning

        _started = runtime.start(client, observer, adopt_everything=True)
        _started.daemon.allowed &= not stepping.exact
        _started.daemon.skip_non_finite(skip=stepping.skip_non_finite)
        if stepping.keep:
            _started.keep_steps(stepping.found)
        spawning.install(managed)

    after_import("torch", start)


def end() -> bool:
    """Takes everything out of torch that was put into it, and ends the session; False: torch has
    not been imported. REQUIRES: nothing is in chunks."""
    from memtide import runtime

    if _started is None:
        return False
    runtime.stop()
    _started.client.close()
    return True


def parameters() -> list[Parameter]:
    """What the runtime trained; empty: it trained nothing, or torch was not imported."""
    return _started.parameters if _started is not None else []
