"""Leases that a script asks for, so that code past torch's dispatcher can use chunks' addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from memtide._capi.client import Places
from memtide._memory.managed_memory import ManagedMemory
from memtide.errors import ResourceExhausted


@contextlib.contextmanager
def holding(
    memory: ManagedMemory, tensors: Iterable[torch.Tensor], *, write: bool
) -> Iterator[None]:
    """Leases the chunks of these tensors for a block; tensors in ordinary memory need none.
    ResourceExhausted: they are more than may be leased beside what other blocks hold."""
    if not memory.addresses.here:
        yield
        return
    ledger = memory.ledger
    places = {place for tensor in tensors for place in memory.addresses.element_places(tensor)}
    if not ledger.can_keep(places):
        raise _too_many(memory, len(places), ledger.kept_beside(places))
    memory.copies.before_hold(places, len(places) + ledger.kept_beside(places))
    none, all_places = Places(()), Places(places)
    leases = ledger.keep(none, all_places) if write else ledger.keep(all_places, none)
    ledger.count_script_holds(1)
    try:
        yield
    finally:
        ledger.count_script_holds(-1)
        leases.release()


def _too_many(memory: ManagedMemory, chunks: int, others: int) -> ResourceExhausted:
    ledger = memory.ledger
    most = ledger.budget if ledger.strict else ledger.limit
    beside = f" beside {others} that are held already" if others else ""
    chunk_mib = memory.addresses.chunk_bytes >> 20
    return ResourceExhausted(
        f"memtide.hold of {chunks} chunks of {chunk_mib} MiB{beside}, and this session "
        f"may hold {most} at once: hold fewer tensors at a time, or enlarge the "
        f"{'device' if ledger.strict else 'host'} pool"
    )
