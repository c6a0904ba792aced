"""Collectives on tensors in chunks in host memory.

A collective over sockets (gloo) receives by system calls in its own threads. A system call that
writes to a chunk with a read lease fails with EFAULT, where a store instruction would be a page
fault. So until a collective is complete, the tensors that it writes have write leases and those
that it reads have read leases. On a GPU gpu_collectives.py does the like, where it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memtide._capi.client import Access, Places
from memtide._memory.leases import Lease
from memtide._memory.managed_memory import ManagedMemory

# The methods of ProcessGroup that all functions of torch.distributed call. Each writes its first
# argument, except `send`, and reads the others.
IN_ORDER = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "gather", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base"),
)
FROM_ONE_TO_ONE = ("recv", "recv_anysource", "send")


@dataclass
class _PendingCollective:
    """A collective that is not known to be complete, and its leases."""

    work: Any
    leases: list[Lease]
    may_be_awaited: bool

    def end(self) -> None:
        for lease in self.leases:
            lease.release()


class Collectives:
    """The leases of collectives that are not complete. One thread starts collectives, as torch
    requires."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._ledger = memory.ledger
        self._addresses = memory.addresses
        self._pending: list[_PendingCollective] = []

    def settle(self) -> None:
        """Drops complete collectives, with their leases and tensors."""
        self._forget({id(one) for one in self._pending if one.work.is_completed()})

    def leasing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method of ProcessGroup: its tensors are leased until it is complete."""
        access = Access.READ if name == "send" else Access.WRITE
        # All ranks begin collectives in the same order, so an earlier one will end without a later
        # one, and may be awaited. A send or a receive may end only after a later one has begun.
        in_order = name in IN_ORDER

        @functools.wraps(original)
        def collective(group: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._addresses.here:
                return original(group, first, *args, **kwargs)
            first_places = self._places(first)
            others = self._places((args, kwargs)) - first_places
            leases = self._lease(Places(first_places), access, may_wait=in_order)
            leases += self._lease(Places(others), Access.READ, may_wait=in_order)
            begun = _PendingCollective(None, leases, in_order)
            try:
                begun.work = original(group, first, *args, **kwargs)
            finally:
                if begun.work is None:
                    begun.end()
                elif leases:
                    self._pending.append(begun)
            return begun.work

        return collective

    def _lease(self, places: Places, access: Access, *, may_wait: bool) -> list[Lease]:
        """Leases the places of managed tensors. If they do not all fit, leases none: loads and
        stores still fault in, but a system call that writes to a read lease fails, and with it the
        collective."""
        if not places.count:
            return []
        self.settle()
        while (lease := self._ledger.lease_also(places, access)) is None:
            first = next((one for one in self._pending if one.may_be_awaited), None)
            if first is None or not may_wait:
                return []
            first.work.wait()
            self._forget({id(first)})
        return [lease]

    def _forget(self, ended: set[int]) -> None:
        for one in self._pending:
            if id(one) in ended:
                one.end()
        self._pending = [one for one in self._pending if id(one) not in ended]

    def _places(self, values: Any) -> set[int]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {place for tensor in tensors for place in self._addresses.element_places(tensor)}
