"""The memory that one client manages in this process, by its parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from memtide._capi.client import Client
from memtide._memory.arenas import Arenas
from memtide._memory.autocast_copies import AutocastCopies
from memtide._memory.leases import LeaseLedger
from memtide._memory.left_memory import LeftMemory
from memtide._memory.memory_pressure import MemoryPressure
from memtide._memory.novelty import Novelty
from memtide._memory.tensor_allocator import TensorAllocator
from memtide._util.hook_costs import HookCosts

_all: weakref.WeakSet[ManagedMemory] = weakref.WeakSet()


def memory_of(tensor: torch.Tensor) -> ManagedMemory | None:
    """The memory in whose chunks a tensor is. None: it is in none of this process."""
    return next((m for m in list(_all) if m.addresses.here and m.addresses.manages(tensor)), None)


class ManagedMemory:
    """The parts, made for one client. A part may be used by itself."""

    def __init__(
        self,
        client: Client,
        ledger: LeaseLedger,
        before_adoption: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_adoption` is called before a tensor's bytes move into chunks, in which there may
        be others."""
        _all.add(self)
        self.client = client
        self.ledger = ledger
        self.before_adoption = before_adoption
        self.arenas = Arenas(client)
        self.addresses = self.arenas.addresses
        on_device = client.properties.device_slots > 0
        self.pressure = MemoryPressure(self.arenas, ledger, on_device=on_device)
        self.allocator = TensorAllocator(client, self.arenas, self.pressure)
        self.left = LeftMemory(self.addresses.device)
        self.costs = HookCosts()
        self.copies = AutocastCopies(self.addresses, ledger)
        self.novelty = Novelty(client, self.addresses, ledger)
