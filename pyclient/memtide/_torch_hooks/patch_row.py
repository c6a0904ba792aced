"""A row of the table of what memtide replaces (patch_table.py), and what rows are made of."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._activations.default_hooks import DefaultHooks
from memtide._memory.device_oom import DeviceOomHandler
from memtide._memory.tensor_manager import TensorManager
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.attributes import Maker
from memtide._torch_hooks.collectives import Collectives
from memtide._torch_hooks.compiled_leases import CompiledLeases
from memtide._torch_hooks.compiled_regions import CompiledRegions
from memtide._torch_hooks.dispatch_switch import DispatchSwitch
from memtide._torch_hooks.gpu_collectives import GpuCollectives
from memtide._torch_hooks.leaf_modules import LeafModules
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.optimizer_hooks import Around

Version = tuple[int, int]
OLDEST_TORCH: Version = (2, 5)


class When(Enum):
    """In which runs a row is installed."""

    ALWAYS = auto()
    EVERYTHING = auto()  # Everything is adopted: `memtide run`.
    HOST = auto()  # Page faults are answered.
    GPU = auto()  # They are not.
    NO_KERNEL_FAULTS = auto()  # A system call's page faults are not.


@dataclass(frozen=True)
class Context:
    """The parts of one runtime, with which replacements work."""

    runs: frozenset[When]
    manager: TensorManager
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


@dataclass(frozen=True)
class Patch:
    """One attribute that is replaced."""

    owner: str  # "module", or "module:Class".
    name: str
    why: str
    make: Callable[[Context], Maker | None]
    when: When = When.ALWAYS
    since: Version = OLDEST_TORCH  # The first torch that has it, of those that are supported.
    until: Version | None = None  # The first one that does not have it any more.
    absent: str = ""  # What is off without it; empty: it is required.
    beside: tuple[str, ...] = ()  # Other attributes of the owner that the replacement uses.
    of_subclasses: bool = False  # It is replaced in the owner's subclasses, not in the owner.

    @property
    def module(self) -> str:
        return self.owner.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.name}"

    def is_in(self, version: Version) -> bool:
        """Whether that version of torch has it, as far as is known."""
        return self.since <= version and (self.until is None or version < self.until)

    def found(self) -> Any:
        """The owner; None: it is not imported, or has not all that is needed."""
        owner: Any = sys.modules.get(self.module)
        if ":" in self.owner:
            owner = getattr(owner, self.owner.partition(":")[2], None)
        fields = getattr(owner, "__annotations__", {})
        if callable(getattr(owner, self.name, None)) and all(
            name in fields or hasattr(owner, name) for name in self.beside
        ):
            return owner
        return None

    def can_be_found(self) -> bool:
        """Whether it is there once its module is imported, which this does."""
        try:
            importlib.import_module(self.module)
        except ImportError:
            return False
        return self.found() is not None
