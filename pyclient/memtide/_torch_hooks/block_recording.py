"""Records what torch's allocator does in a few iterations, for `memtide explain --memory`.

A `TorchDispatchMode` sees each operation with its tensors, and hands them to a BlockRecorder. It is
on from the end of the first iteration, in which states are born: one more iteration shows what is
alive, then `RECORDED` are recorded. Before and after that, no operation costs anything.

The mode is below all others, so that it sees what the others run, and modes that a script enters
and leaves stay above it. It changes no result: an operation runs as it would without it. On a GPU,
lease dispatch cannot end for a covered phase while this mode is there (dispatch_switch.py).

Memory that the mode cannot see has no block: that which an operation takes and gives back within
its call, and what compiled code and threads of the script's own make, until an operation here uses
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memtide._memory.arenas import Arenas
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.block_recorder import BlockRecorder
from memtide._torch_hooks.op_schema import (
    is_higher_order,
    name_of,
    only_views,
    run,
)
from memtide._torch_hooks.own_mode import OwnMode
from memtide._trace.allocator import AllocatorRecord
from memtide._util.step_phase import StepPhase

# Iterations of a record. The last one shows which blocks of the one before die in it.
RECORDED = 5
# Iterations that end before the record begins: states are born, then what is alive is seen.
_BEFORE = 2
_NO_BACKWARD = -1


class BlockRecordingMode(OwnMode):
    """Records each operation of the threads in which it is on."""

    def __init__(self, recorder: BlockRecorder, phase: Callable[[], str]) -> None:
        """`phase`: one of memtide._trace.allocator.PHASES, the one that runs now."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._phase = phase
        # Threads that were started while the mode was on may have it for longer.
        self.is_on = True

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_on or self._recorder.is_full or not _touches_blocks(func):
            return run(func, args, kwargs)
        arguments = _tensors_in((args, kwargs))
        number = self._recorder.operation(name_of(func), self._phase(), arguments)
        results = run(func, args, kwargs)
        self._recorder.results(number, _tensors_in(results), arguments)
        return results


class BlockRecording(StepPhase):
    """The record of a process. Everything but `finish` is called by the thread that steps."""

    def __init__(self, arenas: Arenas, is_stepping: Callable[[], bool]) -> None:
        self._arenas = arenas
        self._is_stepping = is_stepping
        self._recorder = BlockRecorder(self._kind_at)
        self._mode = BlockRecordingMode(self._recorder, self._phase)
        self._ended = 0  # Iterations.

    def end_iteration(self) -> None:
        """An optimizer has stepped. A step within backward is not the end of an iteration here:
        what changes the modes in an autograd node has no effect after it."""
        if torch._C._current_graph_task_id() != _NO_BACKWARD or not self._mode.is_on:
            return
        self._ended += 1
        # Torch would not compile under a mode, and what is not compiled rounds otherwise.
        if self._ended == 1 and hasattr(TorchDispatchMode, "ignore_compile_internals"):
            mode_stack.put_back(self._mode, 0)
        elif self._ended == _BEFORE:
            self._recorder.begin(self._arenas.storages.live())
        elif self._ended > _BEFORE:
            self._recorder.end_iteration()
        if self._ended == _BEFORE + RECORDED or self._recorder.is_full:
            self.close()

    def close(self) -> None:
        """Ends the record. It stays as it is."""
        self._mode.is_on = False
        if mode_stack.depth_of(self._mode) is not None:
            mode_stack.take_off(self._mode)

    def finish(self) -> AllocatorRecord | None:
        """Ends the record, and returns it. None: it did not begin."""
        self.close()
        return self._recorder.finish() if self._ended >= _BEFORE else None

    def _kind_at(self, address: int) -> str | None:
        kind = self._arenas.kind_at(address) if self._arenas.addresses.here else None
        return None if kind is None else kind.name.lower().replace("_", " ")

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != _NO_BACKWARD:
            return "backward"
        return "step" if self._is_stepping() else "forward"


@cache
def _touches_blocks(operation: Any) -> bool:
    """Whether an operation may make or use a block: not, if it only makes views, or has no tensors,
    as one that asks a device for its memory, which comes when it is time to."""
    if is_higher_order(operation):
        return True
    schema = operation._schema
    types = (str(each.type) for each in (*schema.arguments, *schema.returns))
    return not only_views(operation) and any("Tensor" in each for each in types)


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [
        each
        for each in tree_leaves(values)
        if isinstance(each, torch.Tensor) and each.layout is torch.strided and not each.is_meta
    ]
