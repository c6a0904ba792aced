"""The parameters that memtide manages, and those of a module when it was last used."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from memtide._capi.client import Places
from memtide._memory.address_map import address_of
from memtide._memory.held_tensors import held_by
from memtide._memory.tensor_references import TensorReference, reference_to


class ManagedParameters:
    """The parameters that memtide manages: all, or those that were named."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._named: weakref.WeakSet[TensorReference] = weakref.WeakSet()

    def name(self, parameter: torch.Tensor) -> None:
        """Adds a parameter object, also if its bytes are moved or replaced later."""
        self._named.add(reference_to(parameter))

    def forget(self, parameter: torch.Tensor) -> None:
        """Ends `name`: what is moved from now on stays in ordinary memory."""
        self._named.discard(reference_to(parameter))

    def __contains__(self, parameter: Any) -> bool:
        return self._everything or (
            isinstance(parameter, torch.Tensor) and reference_to(parameter) in self._named
        )


class ModuleParameters:
    """The addresses and places of what a module, or a compiled region, holds, when it was last
    used."""

    __slots__ = ("addresses", "is_leaf", "name", "parameters", "places", "trained")

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses: list[int] = []
        self.places = Places(())
        self.trained = False
        self.parameters: list[TensorReference] = []
        # Whether it needs no lease dispatch (leaf_modules.py); None: not known yet.
        self.is_leaf: bool | None = None

    def is_current(self, module: torch.nn.Module) -> bool:
        """Whether the parameters are still where they were."""
        return self.addresses == [address_of(t) for t in held_by(module)]

    def has_exactly(self, names: Iterable[str], module: torch.nn.Module) -> bool:
        """Whether the module has parameters of these names alone, all of torch's own class."""
        own = module._parameters
        are_torchs = all(type(p) is torch.nn.Parameter or p is None for p in own.values())
        return own.keys() == set(names) and are_torchs and not module._buffers
