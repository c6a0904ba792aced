"""The net under everything where touches are not answered: a GPU's memory.

A `TorchDispatchMode` sees each operation of the program with its tensors, and leases their chunks
while it is launched, whether or not a hook announced them: what page faults do on the host. A lease
that a hook holds costs a count; one that nobody holds costs a fetch.

When an operation finds too little GPU memory for its results, chunks leave the device, their memory
goes back to CUDA, and the operation is tried again.

Not seen, and so fatal on chunks: kernels that take addresses past torch's dispatcher (raw Triton,
extensions that do not register their operations, CuPy and Numba over a tensor), and collectives
that a script gathers to be launched together later. torch.compile leaves code as it is while a mode
is active, and CUDA graphs are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._native import Places
from memtide.adopt import Adopter
from memtide.elastic import Elastic
from memtide.errors import OutOfRoom
from memtide.operations import (
    are_fake,
    has_own_dispatch,
    name_of,
    only_views,
    pieces_of,
    run_pieces,
    touched_by,
)


class NetMode(TorchDispatchMode):
    """Leases for every operation of one thread."""

    supports_higher_order_operators = True

    def __init__(self, adopter: Adopter, elastic: Elastic) -> None:
        super().__init__()
        self._adopter = adopter
        self._ledger = adopter.ledger
        self._elastic = elastic

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if has_own_dispatch(types):
            # Of tensors that are made of others, what they do to those comes here.
            return func(*args, **kwargs) if are_fake(types) else NotImplemented
        if only_views(func) or not self._adopter.here:
            return func(*args, **kwargs)
        reads, writes = touched_by(self._adopter, func, args, kwargs)
        try:
            return self._run(func, args, kwargs, reads, writes)
        except OutOfRoom as error:
            pieces = pieces_of(func, args, kwargs)
            if pieces is None:
                raise self._too_many(func, reads | writes) from error
        return run_pieces(
            func, pieces, lambda args, kwargs: self.__torch_dispatch__(func, types, args, kwargs)
        )

    def _run(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: set[int],
        writes: set[int],
    ) -> Any:
        try:
            return self._run_once(func, args, kwargs, reads, writes)
        except torch.OutOfMemoryError as error:
            if writes:  # It may have written some of them already.
                raise
            short = error
        return self._elastic.retry(short, lambda: self._run_once(func, args, kwargs, reads, writes))

    def _run_once(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: set[int],
        writes: set[int],
    ) -> Any:
        if not reads and not writes:
            return func(*args, **kwargs)
        with self._ledger.using(Places(reads - writes), Places(writes)):
            return func(*args, **kwargs)

    def _too_many(self, func: Any, places: set[int]) -> OutOfRoom:
        chunk_mib = self._adopter.chunk_bytes >> 20
        return OutOfRoom(
            f"{name_of(func)} touches {len(places)} chunks of {chunk_mib} MiB at once, and this "
            f"session may lease {self._ledger.budget}; enlarge the device pool (--device-pool) or "
            "use smaller chunks (--chunk-size)"
        )
