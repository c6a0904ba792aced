"""The parts of a runtime that only a GPU needs: lease dispatch, as there are no page faults; the
phases, leaf modules and compiled graphs that run without it; and the eviction of chunks when the
script runs out of device memory."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from memtide._memory.device_oom import AllocatorLimit, DeviceOomHandler
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.device_side import DeviceSide
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.on_gpu import device_guards
from memtide._torch_hooks.on_gpu.compiled_leases import CompiledLeases
from memtide._torch_hooks.on_gpu.dispatch_switch import DispatchSwitch
from memtide._torch_hooks.on_gpu.gpu_collectives import GpuCollectives
from memtide._torch_hooks.on_gpu.leaf_modules import LeafModules
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.own_mode import OwnMode
from memtide._torch_hooks.patching import patches
from memtide._util.step_phase import Step
from memtide.errors import MemtideError

_NO_ROOM_FOR_COPIES = (
    "memtide ends while backward still needs autocast's copies of weights, and finds no room for "
    "them: backward of the losses that there are cannot run any more"
)


class GpuSide(DeviceSide):
    """Lease dispatch of every operation, from `open` until `close`, in the thread that calls `open`
    and in those that it starts."""

    collectives: GpuCollectives
    leaves: LeafModules
    switch: DispatchSwitch

    def __init__(self, memory: ManagedMemory, limit: AllocatorLimit | None) -> None:
        """`limit`: that of the script's own device memory; None: there is none."""
        self._memory = memory
        self._has_stepped = False
        self.elastic = DeviceOomHandler(memory, limit)
        memory.copies.with_room = self.elastic.with_room
        self.compiled = CompiledLeases(memory, self.elastic)
        self.collectives = GpuCollectives(memory)

    def open(self, module_hooks: ModuleHooks, steps_elsewhere: Callable[[], bool]) -> None:
        """Begins. `steps_elsewhere`: as for DispatchSwitch. FailedPrecondition: the script has
        chosen its GPUs too late."""
        memory = self._memory
        device_guards.check_visible_devices(memory.client.visible_devices)
        device_guards.warn_of_late_settings(memory.client.cuda_settings)
        if "torch._dynamo" in sys.modules:  # Graphs that are compiled already have no leases.
            torch._dynamo.reset()
        OwnMode.compiles = patches.can_compile()
        self._mode = LeaseDispatchMode(memory, self.elastic)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        memory.ledger.under_dispatch = True
        self.switch = DispatchSwitch(
            memory, module_hooks, self._mode, self.elastic, steps_elsewhere
        )
        self.leaves = LeafModules(memory, module_hooks, self.elastic)

    def begin_iteration(self) -> None:
        self.leaves.begin_iteration()

    def begin_phase(self) -> None:
        self.switch.begin_phase()

    def begin_evaluation(self, module: torch.nn.Module) -> None:
        self.switch.begin_evaluation(module)

    def around_rest(self, arguments: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        return self.leaves.running(arguments)

    def end_collective(self) -> bool:
        return self.collectives.end_one()

    def before_step(self, step: Step) -> None:
        self.collectives.settle()
        self.leaves.settle()
        self.switch.begin_step(first=step.is_first)
        step.is_lean = self.switch.lean
        if not self._has_stepped:  # Set after torch was imported, perhaps.
            self._has_stepped = True
            device_guards.warn_of_late_settings(self._memory.client.cuda_settings)

    def end_failed_step(self) -> None:
        self.switch.end_phase()

    def end_iteration(self) -> None:
        self._memory.novelty.end_iteration()
        self.elastic.end_iteration()
        self.switch.end_step()

    def close(self) -> None:
        """Ends lease dispatch."""
        self.leaves.close()
        self.switch.close()
        try:
            self._memory.copies.leave_all()
        except (torch.OutOfMemoryError, MemtideError):  # As it may be why the script ends.
            warnings.warn(_NO_ROOM_FOR_COPIES, stacklevel=1)
        finally:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._memory.ledger.under_dispatch = False
