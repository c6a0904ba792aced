"""Autocast's copies of weights: their memory is given back between uses.

Under autocast torch casts a weight of float32 before the operation that uses it. Its cache keeps
the copy until the outermost region ends, and autograd until backward has used it: two bytes a
parameter, of a GPU's memory, at the end of a forward pass.

Here such a copy stays a tensor, in the cache and in the graph, but its storage is empty between
operations: before one that reads the copy, the storage is filled from the weight again. A cast
gives the same bits each time, and gradients add up as in torch, whose graph this is. An operation
or an optimizer's step that changes a weight fills its copies first, and they are ordinary tensors
from then on; so does `memtide.hold`, as code past torch's dispatcher would find no memory there.

A copy is left alone if the forward of a `torch.autograd.Function` makes it, which may hand it to
such code in backward; until an operation that lease dispatch sees has used it; and all are, once
the script has used one on a second CUDA stream, as the memory of one stream's tensor may be used
again before another stream is done with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memtide._capi.client import Places
from memtide._memory.address_map import AddressMap
from memtide._memory.leases import LeaseLedger
from memtide._memory.tensor_parts import PLAIN_TYPES
from memtide._util.devices import gpu_module

CAST = torch.ops.aten._to_copy.default
_NARROWER = (torch.bfloat16, torch.float16)
# Smaller copies, as those of biases, are not worth an operation.
_SMALLEST_BYTES = 1 << 14
_SWEEP_EVERY = 64  # Operations, after which copies that have ended are forgotten.
_NO_PLACES = Places(())


class _Copy:
    """One copy."""

    def __init__(
        self, weight: torch.Tensor, copy: torch.Tensor, places: range, stream: Any
    ) -> None:
        storage = copy.untyped_storage()
        self.weight = weight
        self.version = weight._version
        self.bytes_of_weight = weight.detach()  # The script may put others under the parameter.
        self.places = Places(places)
        self.stream = stream
        self.size_bytes = storage.nbytes()
        self.dtype, self.layout = copy.dtype, (copy.storage_offset(), copy.size(), copy.stride())
        self.is_empty = False
        self.uses = 0  # Operations that run, of any thread.
        self._storage = StorageWeakRef(storage)  # While it exists, no other has this address.

    @property
    def has_ended(self) -> bool:
        """Whether no tensor is over the storage any more."""
        return bool(self._storage.expired())

    def storage(self) -> Any:
        """The storage; None: it has ended."""
        return torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)


class AutocastCopies:
    """The copies of one process. Safe to use from any thread."""

    def __init__(self, addresses: AddressMap, ledger: LeaseLedger) -> None:
        self._addresses = addresses
        self._ledger = ledger
        self._copies: dict[int, _Copy] = {}  # By the address of their storage's object.
        # Places of their weights, and of some weights whose copies have ended.
        self._places: set[int] = set()
        self._used: set[_Copy] = set()  # By operations; some have ended, perhaps.
        self._fills = 0
        self._stream: Any = None  # On which copies are used; None: on no GPU, or none yet.
        self._are_left = False  # Whether no more is emptied.
        self._lock = threading.RLock()

    @property
    def exist(self) -> bool:
        """Whether there are any, or were when it was last looked."""
        return bool(self._copies)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is over a copy's storage."""
        return bool(self._copies) and tensor.untyped_storage()._cdata in self._copies

    def note(self, weight: Any, copy: torch.Tensor) -> None:
        """After a cast under lease dispatch of a tensor in chunks."""
        if (
            not isinstance(weight, torch.nn.Parameter)
            or weight.dtype is not torch.float32
            or copy.dtype not in _NARROWER
            or copy.device != weight.device
            or weight.is_inference()  # It has no version.
            or copy.nbytes < _SMALLEST_BYTES
            or type(copy) is not torch.Tensor
            or not _is_in_autocast()
        ):
            return
        with self._lock:
            self._see_stream(copy.device)
            if self._are_left:
                return
            places = self._addresses.element_places(weight)
            made = _Copy(weight, copy, places, self._stream)
            self._copies[copy.untyped_storage()._cdata] = made
            self._places.update(places)

    def fill(self, args: Iterable[Any]) -> list[_Copy]:
        """Before an operation, or a view: fills the copies among its arguments, and returns them,
        which stay filled until `end_use`. RuntimeError: a weight has changed unseen, or torch finds
        no memory; ResourceExhausted: as LeaseLedger.using."""
        with self._lock:
            self._fills += 1
            if self._fills % _SWEEP_EVERY == 0:
                self._sweep()
            copies = [
                copy
                for tensor in _tensors_in(args)
                if (copy := self._copies.get(tensor.untyped_storage()._cdata)) is not None
            ]
            if copies:
                self._see_stream(copies[0].bytes_of_weight.device)
            if any(copy.is_empty for copy in copies):
                self.empty_used(copies)
                for copy in copies:
                    self._fill(copy)
            for copy in copies:
                copy.uses += 1
            return copies

    def end_use(self, copies: list[_Copy], *, read: bool, changed: bool) -> None:
        """After the operation of `fill`. `read`: it was no view. `changed`: it may have written to
        its arguments."""
        with self._lock:
            for copy in copies:
                copy.uses -= 1
            if read:
                self._used.update(copies)
            if changed:
                self._leave(copies)

    def empty_used(self, beside: Iterable[_Copy] = ()) -> None:
        """Gives back the memory of copies that an operation has used, but for some."""
        if self._are_left or not self._used:
            return
        with self._lock:
            used = {copy for copy in self._used.difference(beside) if not copy.uses}
            self._used -= used
            for copy in used:
                if (storage := copy.storage()) is not None:
                    storage.resize_(0)
                    copy.is_empty = True

    def before_writing(self, places: Set[int]) -> None:
        """Before something writes to these places: the copies of weights there stay as they are."""
        if not self._copies or self._places.isdisjoint(places):
            return
        with self._lock:
            self._sweep()
            self._leave(
                [c for c in self._copies.values() if not places.isdisjoint(c.places.numbers)]
            )

    def before_unseen(self, tensors: Iterable[torch.Tensor]) -> None:
        """Before code that lease dispatch does not see uses these."""
        if self._copies:
            self.end_use(self.fill(tensors), read=False, changed=True)

    def leave_all(self) -> None:
        """From now on operations are not seen: all copies stay as they are."""
        if self._copies:
            with self._lock:
                self._leave(list(self._copies.values()))

    def _leave(self, copies: list[_Copy]) -> None:
        with self._lock:
            for copy in copies:
                self._fill(copy)
            left = set(copies)
            self._copies = {at: c for at, c in self._copies.items() if c not in left}
            self._used -= left

    def _fill(self, copy: _Copy) -> None:
        storage = copy.storage()
        if not copy.is_empty or storage is None:
            return
        if copy.weight._version != copy.version:
            raise RuntimeError(
                f"a weight of shape {list(copy.weight.shape)} was changed, by code that memtide "
                "does not see, after autocast had cast it and before backward has used the copy; "
                "memtide.hold(weight, write=True) around that code keeps the copy as it was"
            )
        copy.is_empty = False
        try:
            with _on(copy.stream):
                storage.resize_(copy.size_bytes)
                whole = torch.empty(0, dtype=copy.dtype, device=copy.weight.device)
                with torch.no_grad(), self._ledger.using(copy.places, _NO_PLACES):
                    whole.set_(storage, *copy.layout).copy_(copy.bytes_of_weight)
        except BaseException:
            storage.resize_(0)
            copy.is_empty = True
            raise

    def _sweep(self) -> None:
        self._copies = {at: copy for at, copy in self._copies.items() if not copy.has_ended}
        self._places = {place for copy in self._copies.values() for place in copy.places.numbers}

    def _see_stream(self, device: torch.device) -> None:
        module = gpu_module(device.type)
        if module is None:
            return
        stream = module.current_stream(device)
        if self._stream is None:
            self._stream = stream
        self._are_left = self._are_left or stream != self._stream


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Runs a block on a stream, which this thread's own then waits for; None: on no GPU."""
    module = None if stream is None else gpu_module(stream.device.type)
    if module is None or (current := module.current_stream(stream.device)) == stream:
        yield
        return
    with module.stream(stream):
        yield
    current.wait_stream(stream)


def _is_in_autocast() -> bool:
    """Whether this thread is in a region of autocast, and in no Function's forward."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0 and torch._C._is_fwd_grad_enabled()


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if type(value) in PLAIN_TYPES:
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)
