"""Collectives on tensors in chunks in GPU memory.

Lease dispatch (lease_dispatch.py) leases the tensors of a collective while it is launched, as for
all operations. Such a lease is enough for kernels on streams (NCCL): no chunk is unmapped before
the work on all streams that was launched under its leases is done. Two kinds access tensors later,
and keep their leases for longer:

- what a backend's own threads do (gloo, MPI), until the collective is complete;
- what is coalesced into a group (`batch_isend_irecv`), which is launched at the end of the group.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memtide._capi.client import Places
from memtide._memory.leases import KeptLeases
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.collectives import IN_ORDER

# Backends that launch kernels on streams, and access tensors only there.
_ON_STREAMS = ("nccl",)


@dataclass
class _PendingCollective:
    """A collective, or a group of them, that is not known to be complete, and its leases."""

    work: Any
    leases: list[KeptLeases]
    may_be_awaited: bool

    def end(self) -> None:
        for each in self.leases:
            each.release()


class _Group:
    """The collectives that one process group coalesces until the group ends."""

    def __init__(self) -> None:
        self.leases: list[KeptLeases] = []
        self.in_order = True


class GpuCollectives:
    """The leases of collectives that are not launched, or not complete. One thread starts those of
    one process group, as torch requires; any thread may end them, to make room."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._ledger = memory.ledger
        self._addresses = memory.addresses
        self._pending: list[_PendingCollective] = []
        self._lock = threading.Lock()  # Guards `_pending`. No collective is awaited under it.
        self._groups: dict[Any, _Group] = {}

    def settle(self) -> None:
        """Drops complete collectives, with their leases. No group is open while an optimizer steps:
        one that an exception has left open is dropped as well."""
        self._drop({id(one) for one in self._listed() if one.work.is_completed()})
        for group in list(self._groups):
            self._drop_group(group)

    def leasing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method of ProcessGroup that begins a collective."""
        in_order = name in IN_ORDER

        @functools.wraps(original)
        def collective(group: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            coalesced = self._groups.get(group)
            if not self._addresses.here or (coalesced is None and self._is_on_streams(group)):
                return original(group, first, *args, **kwargs)
            leases = self._keep(name, first, (args, kwargs))
            if leases is None:
                return original(group, first, *args, **kwargs)
            if coalesced is not None:
                coalesced.leases.append(leases)
                coalesced.in_order &= in_order
                return original(group, first, *args, **kwargs)
            begun = _PendingCollective(None, [leases], in_order)
            try:
                begun.work = original(group, first, *args, **kwargs)
            finally:
                self._keep_or_end(begun)
            return begun.work

        return collective

    def starting_groups(self, original: Callable[..., None]) -> Callable[..., None]:
        """ProcessGroup._start_coalescing: what follows is launched together."""

        @functools.wraps(original)
        def _start_coalescing(group: Any, *args: Any) -> None:
            self._drop_group(group)
            original(group, *args)
            if self._addresses.here:
                self._groups[group] = _Group()

        return _start_coalescing

    def ending_groups(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """ProcessGroup._end_coalescing, which launches a group."""

        @functools.wraps(original)
        def _end_coalescing(group: Any, *args: Any) -> Any:
            coalesced = self._groups.pop(group, _Group())
            begun = _PendingCollective(None, coalesced.leases, coalesced.in_order)
            on_streams = self._addresses.here and self._is_on_streams(group)
            try:
                work = original(group, *args)
                begun.work = None if on_streams else work
            finally:
                self._keep_or_end(begun)
            return work

        return _end_coalescing

    def _keep(self, name: str, first: Any, others: Any) -> KeptLeases | None:
        """Leases for a collective that outlives its call. None: it uses no chunk."""
        first_places = self._places(first)
        other_places = self._places(others) - first_places
        if not first_places and not other_places:
            return None
        if name == "send":
            return self._ledger.keep(Places(first_places | other_places), Places(()))
        return self._ledger.keep(Places(other_places), Places(first_places))

    def _keep_or_end(self, begun: _PendingCollective) -> None:
        if begun.work is None:
            begun.end()
        elif begun.leases:
            with self._lock:
                self._pending.append(begun)

    def _listed(self) -> list[_PendingCollective]:
        with self._lock:
            return list(self._pending)

    def end_one(self) -> bool:
        """Ends what is complete, or else waits for the collective that began first. False: there is
        none that ends without a later one. A send or a receive may not."""
        pending = self._listed()
        complete = {id(one) for one in pending if one.work.is_completed()}
        if not complete:
            first = next((one for one in pending if one.may_be_awaited), None)
            if first is None:
                return False
            first.work.wait()
            complete = {id(first)}
        self._drop(complete)
        return True

    def _drop(self, ended: set[int]) -> None:
        with self._lock:
            dropped = [one for one in self._pending if id(one) in ended]
            self._pending = [one for one in self._pending if id(one) not in ended]
        for one in dropped:
            one.end()

    def _drop_group(self, group: Any) -> None:
        for each in self._groups.pop(group, _Group()).leases:
            each.release()

    def _is_on_streams(self, group: Any) -> bool:
        try:
            return group._get_backend(self._addresses.device).name() in _ON_STREAMS
        except RuntimeError:  # It has none for this device.
            return False

    def _places(self, values: Any) -> set[int]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {place for tensor in tensors for place in self._addresses.element_places(tensor)}
