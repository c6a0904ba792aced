"""Collectives on tensors in chunks, where touches are answered (host memory).

A collective over sockets (gloo) receives by system calls of threads of its own. One that writes to
a chunk that is leased for reading gets EFAULT, where an instruction of the program would be
answered. So what a collective writes is leased for writing until it is complete, and what it reads
for reading. On a GPU the net (net.py) sees collectives as it does all operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memtide._native import Access, Places
from memtide.adopt import Adopter
from memtide.leases import Lease

# Functions of ProcessGroup, through which all of torch.distributed's go. They write their first
# argument, but for `send`, and read the others.
_COLLECTIVES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "gather", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base"),
)
_FROM_ONE_TO_ONE = ("recv", "recv_anysource", "send")


@dataclass
class _UnderWay:
    """A collective, and what is leased for it until it is complete."""

    work: Any
    leases: list[Lease]
    may_be_awaited: bool

    def end(self) -> None:
        for lease in self.leases:
            lease.release()


class Collectives:
    """Leases for what is under way. One thread starts collectives, as torch asks for."""

    def __init__(self, adopter: Adopter) -> None:
        self._adopter = adopter
        self._under_way: list[_UnderWay] = []

    def install(self, wrap: Callable[..., None]) -> None:
        """Follows each collective from now on. `wrap`: as Runtime._wrap."""
        if not torch.distributed.is_available():
            return
        group = torch.distributed.ProcessGroup
        for name in (*_COLLECTIVES, *_FROM_ONE_TO_ONE):
            if hasattr(group, name):
                wrap(group, name, functools.partial(self._leasing, name))

    def settle(self) -> None:
        """Lets go of what is complete, and of its tensors: before optimizers step, too."""
        self._forget({id(one) for one in self._under_way if one.work.is_completed()})

    def _leasing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        access = Access.READ if name == "send" else Access.WRITE
        # Ranks begin collectives in one order, so that what was begun before will end. What is sent
        # from one to one may end only when what comes later has begun.
        in_order = name in _COLLECTIVES

        @functools.wraps(original)
        def collective(group: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._adopter.here:
                return original(group, first, *args, **kwargs)
            first_places = self._places(first)
            others = self._places((args, kwargs)) - first_places
            leases = self._lease(Places(first_places), access, may_wait=in_order)
            leases += self._lease(Places(others), Access.READ, may_wait=in_order)
            begun = _UnderWay(None, leases, in_order)
            try:
                begun.work = original(group, first, *args, **kwargs)
            finally:
                if begun.work is None:
                    begun.end()
                elif leases:
                    self._under_way.append(begun)
            return begun.work

        return collective

    def _lease(self, places: Places, access: Access, *, may_wait: bool) -> list[Lease]:
        """Of what is in chunks. Of more than fits, none: touches are answered, but for a system
        call's write to what is leased for reading, which ends a collective with an error."""
        if not places.count:
            return []
        self.settle()
        while (lease := self._adopter.ledger.lease_also(places, access)) is None:
            first = next((one for one in self._under_way if one.may_be_awaited), None)
            if first is None or not may_wait:
                return []
            first.work.wait()
            self._forget({id(first)})
        return [lease]

    def _forget(self, ended: set[int]) -> None:
        for one in self._under_way:
            if id(one) in ended:
                one.end()
        self._under_way = [one for one in self._under_way if id(one) not in ended]

    def _places(self, values: Any) -> set[int]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {place for tensor in tensors for place in self._adopter.element_places(tensor)}
