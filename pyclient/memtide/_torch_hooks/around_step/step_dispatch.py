"""Leasing while an optimizer steps, and optimizer state that is born in chunks.

A `TorchDispatchMode` sees each operation of the step with its tensors. It leases their chunks
before the operation, and lets a new tensor that is made after the image of a managed one
(`zeros_like(p)`, `clone(grad)`) be made in a chunk, by the same operation on the same values.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.lease_window import LeaseWindow
from memtide._memory.managed_memory import ManagedMemory
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.op_schema import (
    name_of,
    pieces_of,
    run,
    run_pieces,
    touched_by,
)
from memtide._torch_hooks.own_mode import OwnMode
from memtide._util.script_modes import without_modes_of_script

_aten = torch.ops.aten
_LIKE_OPERATIONS: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.empty_like.default: lambda new, _source: new,
    _aten.zeros_like.default: lambda new, _source: new.zero_(),
    _aten.ones_like.default: lambda new, _source: new.fill_(1),
    _aten.full_like.default: lambda new, _source, value: new.fill_(value),
    _aten.clone.default: lambda new, source: new.copy_(source),
}


class StepDispatchMode(OwnMode):
    """Active while one optimizer steps."""

    def __init__(self, memory: ManagedMemory, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._addresses = memory.addresses
        self._observer = observer
        self._window = LeaseWindow(memory.ledger)
        self._born: Counter[int] = Counter()  # After the image of each tensor, by its address.

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _LIKE_OPERATIONS and self._creates_state(args, kwargs):
            return self._create_state(func, args, kwargs)
        if not self._memory.ledger.active or self._memory.ledger.strict:
            # Strict: lease dispatch below leases, and larger pieces.
            return run(func, args, kwargs)
        pieces = pieces_of(func, args, kwargs)
        if pieces is None:
            return self._run_leased(func, args, kwargs)
        return run_pieces(func, pieces, functools.partial(self._run_leased, func))

    def close(self) -> None:
        """Gives the leases back."""
        self._window.close()

    def _creates_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        source = args[0]
        return (
            not torch.is_grad_enabled()  # Enabled: the closure's forward pass, not the update.
            and source.numel() * source.itemsize >= SMALLEST_BYTES
            and self._addresses.manages(source)
            and kwargs.get("device") in (None, self._addresses.device)
            and kwargs.get("layout") in (None, torch.strided)
            and not kwargs.get("pin_memory")
        )

    def _create_state(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        source = args[0]
        layout = {key: kwargs[key] for key in ("dtype", "memory_format") if key in kwargs}
        row = self._born[source.data_ptr()]
        self._born[source.data_ptr()] += 1
        with without_modes_of_script():
            shadow = torch.empty_strided(
                source.size(), source.stride(), dtype=source.dtype, device="meta"
            )
            shadow = _aten.empty_like.default(shadow, **layout)
            born = self._memory.allocator.state(shadow, row, source)
        if self._memory.ledger.active and not self._memory.ledger.strict:
            places_of = self._addresses.element_places
            self._window.need(set(places_of(source)), set(places_of(born)))
        return _LIKE_OPERATIONS[func](born, *args)

    def _run_leased(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reads, writes = touched_by(self._addresses, func, args, kwargs)
        if (reads or writes) and not self._window.holds(reads, writes):
            self._observer.moment("step", name_of(func))
            self._window.need(reads, writes)
        return run(func, args, kwargs)
