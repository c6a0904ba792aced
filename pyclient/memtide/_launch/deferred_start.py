"""Starts the runtime when the script imports torch, and imports torch only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memtide._launch.sharing import LayerSharing, Sharing
from memtide._util.import_hook import after_import

if TYPE_CHECKING:
    from memtide._torch_hooks.runtime import Runtime

_runtime: Runtime | None = None
_shared_layers: LayerSharing | None = None


def install(start: Callable[[], Runtime]) -> None:
    """Calls `start` when torch is imported, or at once if it is imported already.

    A session that was installed before ends, and what is in its chunks moves to this one's
    (REQUIRES then: no module runs).
    """

    def torch_imported() -> None:
        global _runtime
        if _runtime is None:
            _runtime = start()
        else:
            from memtide._torch_hooks import session_change

            _runtime = session_change.change(_runtime, start)

    after_import("torch", torch_imported)


def current() -> Runtime | None:
    """The runtime, in a forked child that of its parent; None: torch has not been imported."""
    return _runtime


def end() -> bool:
    """Removes all hooks from torch and ends the session. Returns False, and does nothing, if torch
    has not been imported. REQUIRES: no tensor is in chunks."""
    global _runtime, _shared_layers
    from memtide._torch_hooks import runtime

    if _runtime is None:
        return False
    runtime.stop()
    _runtime.client.close()
    _runtime = _shared_layers = None
    return True


def share(sharing: Sharing | None, say: Callable[[str], None]) -> Sequence[LayerSharing]:
    """Starts the layers' sharing, if it is asked for, once. Returns it, as a phase of steps."""
    global _shared_layers
    if sharing is not None and _shared_layers is None:
        _shared_layers = sharing.start(say)
    return () if _shared_layers is None else (_shared_layers,)


def shared_layers() -> LayerSharing | None:
    """The layers that share by the options of the run; None: none do, or the script has no
    parameter yet."""
    return _shared_layers


def parameters_in(start: int, end: int) -> list[str]:
    """The names of the parameters that have bytes in [start, end), as far as they are known."""
    return _runtime.names.parameters_in(start, end) if _runtime is not None else []
