"""The parts of a runtime with which the rows of the patch table work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from memtide._activations.default_hooks import DefaultHooks
from memtide._memory.device_oom import DeviceOomHandler
from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.around_step.optimizer_hooks import Around
from memtide._torch_hooks.collectives import Collectives
from memtide._torch_hooks.compiled_regions import CompiledRegions
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.on_gpu.compiled_leases import CompiledLeases
from memtide._torch_hooks.on_gpu.dispatch_switch import DispatchSwitch
from memtide._torch_hooks.on_gpu.gpu_collectives import GpuCollectives
from memtide._torch_hooks.on_gpu.leaf_modules import LeafModules
from memtide._torch_hooks.patching.patch_when import When


@dataclass(frozen=True)
class Context:
    """The parts of one runtime."""

    runs: frozenset[When]
    memory: ManagedMemory
    module_hooks: ModuleHooks
    observer: Observer
    offloaded: OffloadedSteps
    collectives: Collectives | GpuCollectives
    regions: CompiledRegions
    compiled: CompiledLeases | None  # On a GPU.
    around_step: Around
    on_optimizer: Callable[[Optimizer], None]
    on_wrapping: Callable[[torch.nn.Module, torch.nn.Module], None]
    out_of_memory: DeviceOomHandler | None  # On a GPU.
    leaves: LeafModules | None  # On a GPU.
    switch: DispatchSwitch | None  # On a GPU.
    saved_tensors: DefaultHooks
    managed_tensors: Callable[[], Iterable[torch.Tensor]]
