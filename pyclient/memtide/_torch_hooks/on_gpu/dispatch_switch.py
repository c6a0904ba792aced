"""Takes lease dispatch off one thread while all chunks are leased together.

A dispatch mode in Python costs each operation 4 us and more even where it does nothing, so the only
cheap one is none. While all chunks fit, one lease on all of them (a hold, _memory/leases.py)
answers every access, and no operation has to be seen. A *covered phase* is the time from the first
forward pass of an iteration to the end of the optimizer's step, or one outermost forward pass
without gradients, as in evaluation, or for one token that is generated:

- It begins only in the thread that installed the mode, where that mode is the only one, outside of
  backward. Autograd gives its threads the modes of the thread that called `backward`, so a pass
  runs as it began.
- Chunks that are new during it are added to the hold, or what was to be moved there stays where it
  is (_memory/adoption.py). Gradients stay where torch makes them: nothing leaves the device until
  the optimizer has used them.
- Autograd runs each node with a copy of the modes, so that a mode that is entered in a node is lost
  at its end. Steps of optimizers within backward therefore neither begin nor end a phase.
- Between two phases idle leases can be reclaimed for another job, as always.
- A script may stop within an iteration: it has seen enough, or has caught an error. Then the phase
  ends once it calls `train` or `eval` of a module, or zeroes gradients where other iterations do
  not, or after memory was short.
- Other threads have modes of their own, which lease for each operation as always.

Most phases are *lean*: optimizer states are not looked through for new tensors, and unless an
observer samples moments, the module hooks are out, too. One in `_LOOK_EVERY` phases is not lean, so
that parameters and states that a script has put in the place of adopted ones are adopted as well.
Until then they are in ordinary memory.

Nothing can run an operation again that finds too little memory during a covered phase. So one
begins only if iterations leave headroom (DeviceOomHandler.has_headroom), and none without gradients
before such a pass has ended under dispatch, so that its peak is known.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._memory.device_oom import DeviceOomHandler
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.on_gpu.outermost_pass import OutermostPass
from memtide._util.program_capture import is_captured
from memtide.errors import MemtideError

Function = Callable[..., Any]
_NO_BACKWARD = -1
_LOOK_EVERY = 17  # Odd, so that of two optimizers in turn each has its phases that are not lean.


class DispatchSwitch:
    """Decides when the mode is off. Its methods may be called in any thread; in others than the one
    that made it, they change nothing."""

    def __init__(
        self,
        memory: ManagedMemory,
        module_hooks: ModuleHooks,
        mode: TorchDispatchMode,
        elastic: DeviceOomHandler,
        steps_elsewhere: Callable[[], bool],
    ) -> None:
        """`steps_elsewhere`: whether optimizer steps are made in parts, which need chunks that are
        not leased. REQUIRES: `mode` is active in this thread."""
        self.lean = False  # Whether there is a lean phase.
        self._memory = memory
        self._ledger = memory.ledger
        self._module_hooks = module_hooks
        self._mode = mode
        self._elastic = elastic
        self._steps_elsewhere = steps_elsewhere
        self._thread = threading.get_ident()
        self._chunks = 0  # When an iteration last ended.
        self._settled = False  # An iteration has passed in which no chunk was allocated.
        self._refused = False  # Since the last step: what refused is not asked at each module.
        self._phases = 0
        # Calls of zero_grad since the last forward pass outside of phases, and the most of them
        # that an iteration had before it stepped.
        self._zeroed = self._most_zeroed = 0
        # Passes without gradients. The chunks when one last ended; -1: none has.
        self._evaluation = OutermostPass(self._end_evaluation)
        self._evaluates = False  # Whether the phase is the pass's.
        self._evaluations = 0  # Such phases.
        self._chunks_evaluated = -1
        self._evaluation_refused = False  # As `_refused`.

    def begin_phase(self) -> None:
        """Begins a covered phase, if that is possible now and saves something. Called before each
        forward pass of a module while there is none."""
        if self._is_owner():
            self._zeroed = 0
        if not self._settled or self._refused or self._ledger.holding or not self._may_begin():
            return
        if not self._has_room():
            self._refused = True
            return
        self._phases += 1
        self._take_off(self._phases)

    def begin_evaluation(self, module: torch.nn.Module) -> None:
        """As `begin_phase`, for one outermost forward pass without gradients. Called before each
        forward pass of a module without gradients, while there is no phase."""
        if not self._is_owner() or not self._evaluation.begin(module):
            return
        self._zeroed = 0
        if not self._may_evaluate():
            return
        if not self._has_room():
            self._evaluation_refused = True
            return
        self._evaluates = True
        self._evaluations += 1
        self._take_off(self._evaluations)

    def end_phase(self) -> None:
        """Ends the covered phase, if there is one."""
        if not self._ledger.holding or not self._is_owner():
            return
        self._evaluates = False
        mode_stack.put_back(self._mode, 0)
        self._module_hooks.watch()
        self.lean = False
        self._memory.pressure.end_hold()

    def close(self) -> None:
        """Ends all of this. REQUIRES: no module runs."""
        self._evaluation.leave()
        self.end_phase()

    def training_or_evaluating(self, original: Function) -> Function:
        """torch.nn.Module.train, which `eval` calls, too: no iteration of a script goes on then."""

        @functools.wraps(original)
        def train(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_captured():
                self._leave_evaluation()
                self.end_phase()
            return original(module, *args, **kwargs)

        return train

    def zeroing(self, original: Function) -> Function:
        """torch.optim.Optimizer.zero_grad, by which most scripts begin an iteration."""

        @functools.wraps(original)
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_captured() and self._is_owner():
                self._zeroed += 1
                if self._zeroed > self._most_zeroed or (
                    self._ledger.holding and self._elastic.has_become_short()
                ):
                    self.end_phase()
            return original(optimizer, *args, **kwargs)

        return zero_grad

    def begin_step(self, *, first: bool) -> None:
        """Before an optimizer's step. In its first one operations are watched for states that are
        born, so the phase ends."""
        if not self._is_owner():
            return
        if first:
            self._settled = False
        if first or self._steps_elsewhere() or not self._memory.pressure.is_all_held():
            self.end_phase()

    def end_step(self) -> None:
        """After an optimizer's step, the covered phase ends."""
        if not self._is_owner():
            return
        self._leave_evaluation()
        self.end_phase()
        self._most_zeroed = max(self._most_zeroed, self._zeroed)
        self._ledger.refresh()
        chunks = self._memory.arenas.chunks()
        self._settled = chunks <= self._chunks
        self._refused = False
        self._chunks = chunks

    def _end_evaluation(self, module: torch.nn.Module) -> None:
        self._memory.novelty.leave_module(module)
        if self._evaluates:
            self.end_phase()
        self._chunks_evaluated = self._memory.arenas.chunks()

    def _leave_evaluation(self) -> None:
        if self._is_owner():
            self._evaluation.leave()
            self._evaluation_refused = False

    def _take_off(self, phases: int) -> None:
        self.lean = phases % _LOOK_EVERY != 0
        if self.lean and not self._module_hooks.sampling:
            self._module_hooks.unwatch()
        mode_stack.take_off(self._mode)

    def _is_owner(self) -> bool:
        in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
        return threading.get_ident() == self._thread and not in_backward

    def _has_room(self) -> bool:
        # Gradients join the script's own memory with the first phase.
        more_bytes = 0 if self._phases else self._memory.arenas.gradients.peak_bytes
        pressure = self._memory.pressure
        if not (self._elastic.has_headroom(more_bytes) and pressure.hold_all()):
            return False
        try:
            self._memory.copies.leave_all()
        except (torch.OutOfMemoryError, MemtideError):
            pressure.end_hold()
            return False
        return True

    def _may_begin(self) -> bool:
        return self._is_owner() and torch.is_grad_enabled() and self._may_cover()

    def _may_evaluate(self) -> bool:
        return (
            not self._refused
            and not self._evaluation_refused
            and self._memory.arenas.chunks() <= self._chunks_evaluated
            and not self._memory.pressure.exceeds_lease_budget()
            and self._may_cover()
        )

    def _may_cover(self) -> bool:
        return mode_stack.is_alone(self._mode) and not self._steps_elsewhere()
