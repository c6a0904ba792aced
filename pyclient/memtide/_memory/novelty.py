"""Novelties: whether a script on a GPU does something for the first time.

A released chunk keeps its mapping while the script repeats what it has done, so that a kernel that
memtide does not see finds other bytes there instead of a fault (client/cuda/kept_mappings.h).
Something new may bring such a kernel. So protection is put back (`Client.protect`) when there is

- an operation that lease dispatch has not seen (views left out: they read no element);
- a module whose forward was not called; for one that holds no tensor, its class counts, because
  scripts make a loss anew in each iteration;
- an outermost module's inputs of another shape or data type, in another mode (`train`, `no_grad`).
  Within it shapes may vary by the data, as those of a mixture's experts do;
- a graph that torch.compile has made.

Under a hold of all chunks no access is without a lease: nothing is looked at, and nothing counts as
seen by it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from memtide._capi.client import Client
from memtide._memory.address_map import AddressMap
from memtide._memory.leases import LeaseLedger

# The first iterations, in which the client protects all chunks anyway (KeptMappings).
_FIRST = 2
# The most that are remembered; what is beyond counts as seen, so that a script that always does
# something new is not always slow. torch has some 3,000 operations. Shapes that vary without end,
# as the lengths of texts do, soon say nothing.
_MOST_SEEN = 4096
_MOST_INPUTS = 64


class Novelty:
    """The operations, modules and inputs that one process's script has had. Safe to use from any
    thread: one that two threads have at once may count twice."""

    def __init__(self, client: Client, addresses: AddressMap, ledger: LeaseLedger) -> None:
        self._client = client
        self._addresses = addresses
        self._ledger = ledger
        self.operations: set[Any] = set()  # Lease dispatch looks here before it calls `see`.
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._classes: set[type[torch.nn.Module]] = set()
        self._inputs: set[tuple[Any, ...]] = set()
        self._outermost = threading.local()  # `module`: it runs in this thread.
        self._iterations = 0
        self._is_protected = False  # In this iteration, by `protect`.

    def see_operation(self, operation: Any) -> None:
        """Before an operation that is not in `operations`."""
        self._see(operation, self.operations, _MOST_SEEN)

    def see_graph(self) -> None:
        """torch.compile has made a graph."""
        if not self._ledger.holding:
            self._protect()

    def enter_module(self, module: torch.nn.Module, inputs: Iterable[Any]) -> None:
        """Before a module's forward. A module without tensors among its positional arguments is
        outermost for none: those that it calls are, as in a model that is called by keywords."""
        if self._ledger.holding:
            return
        if not module._parameters and not module._buffers:
            self._see(type(module), self._classes, _MOST_SEEN)
        elif module not in self._modules:
            self._modules.add(module)
            self._protect()
        outermost = getattr(self._outermost, "module", None)
        if outermost is not None and outermost is not module:
            return
        signature = tuple(
            (each.shape, each.dtype)
            for each in inputs
            if isinstance(each, torch.Tensor) and not each.is_nested
        )
        if signature:
            self._outermost.module = module
            mode = module.training, torch.is_grad_enabled()
            self._see((type(module), mode, signature), self._inputs, _MOST_INPUTS)

    def leave_module(self, module: torch.nn.Module) -> None:
        """After a module's forward; without it, until the iteration ends or the module is called
        again, no other counts as outermost in this thread."""
        if getattr(self._outermost, "module", None) is module:
            self._outermost.module = None

    def see_leaf(self, module: torch.nn.Module, value: torch.Tensor) -> None:
        """Before the forward of a module that calls no other."""
        self.enter_module(module, (value,))
        self.leave_module(module)

    def end_iteration(self) -> None:
        """Before a hold of the iteration ends."""
        self._outermost.module = None
        self._is_protected = False
        if not self._ledger.holding:  # As for the client: daemon_reporter.py.
            self._iterations += 1

    def _see(self, what: Any, seen: set[Any], most: int) -> None:
        if what in seen or len(seen) >= most or self._ledger.holding:
            return
        seen.add(what)
        self._protect()

    def _protect(self) -> None:
        if self._iterations < _FIRST or self._is_protected or not self._addresses.here:
            return
        self._is_protected = True
        self._client.protect()
