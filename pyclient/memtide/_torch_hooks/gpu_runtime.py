"""The parts of a runtime that only a GPU needs: lease dispatch, as there are no page faults; the
phases, leaf modules and compiled graphs that run without it; and the eviction of chunks when the
script runs out of device memory."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from memtide._memory.device_oom import DeviceOomHandler
from memtide._memory.tensor_manager import TensorManager
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._torch_hooks import device_guards, patches
from memtide._torch_hooks.compiled_leases import CompiledLeases
from memtide._torch_hooks.dispatch_switch import DispatchSwitch
from memtide._torch_hooks.leaf_modules import LeafModules
from memtide._torch_hooks.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.own_mode import OwnMode


class GpuRuntime:
    """Lease dispatch of every operation, from the moment that this is made until `close`, in the
    thread that makes it and in those that it starts."""

    def __init__(
        self,
        manager: TensorManager,
        module_hooks: ModuleHooks,
        offloaded: OffloadedSteps,
        steps_elsewhere: Callable[[], bool],
    ) -> None:
        """`steps_elsewhere`: as for DispatchSwitch. FailedPrecondition: the script has chosen its
        GPUs too late."""
        client = manager.client
        device_guards.check_visible_devices(client.visible_devices)
        device_guards.warn_of_late_settings(client.cuda_settings)
        self._ledger = manager.ledger
        self.elastic = DeviceOomHandler(manager)
        self.compiled = CompiledLeases(manager, self.elastic)
        if "torch._dynamo" in sys.modules:  # What is compiled already has no leases.
            torch._dynamo.reset()
        OwnMode.compiles = patches.can_compile()
        self._mode = LeaseDispatchMode(manager, self.elastic)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._ledger.under_dispatch = True
        self.switch = DispatchSwitch(
            manager, module_hooks, self._mode, self.elastic, steps_elsewhere
        )
        module_hooks.begin_phase = self.switch.begin_phase
        self.leaves = LeafModules(manager, module_hooks, self.elastic)
        module_hooks.begin_iteration = self.leaves.begin_iteration
        offloaded.around_rest = self.leaves.running

    def end_iteration(self) -> None:
        """After an optimizer's step."""
        self.elastic.end_iteration()
        self.switch.end_step()

    def close(self) -> None:
        """Ends lease dispatch."""
        self.switch.end_phase()
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._ledger.under_dispatch = False
