"""Autocast's copies of weights: their memory is given back between uses.

Under autocast torch casts a weight of float32 before the operation that uses it. Its cache keeps
the copy until the outermost region ends, and autograd until backward has used it: two bytes a
parameter, of a GPU's memory, at the end of a forward pass.

Here such a copy stays a tensor, in the cache and in the graph, but its storage is emptied once an
operation has read it, at the next cast or fill; before another operation that reads the copy, or
makes a view of it, the storage is filled from the weight again. A cast gives the same bits each
time, and gradients add up as in torch, whose graph this is. An operation or an optimizer's step
that changes a weight fills its copies first, and they are ordinary tensors from then on.

Only torch refers to such a copy. One that the script makes (`weight.to(torch.bfloat16)`) may be
anywhere, so it is left alone: the call that has cast it returns to Python before an operation reads
it, while autocast casts and computes in one call. Copies are left alone, too, that are made within
`memtide.hold`, or under hooks for saved tensors of the script's own, which may tell tensors apart
by their addresses; and all are, from when the script has used one on a second CUDA stream: the
memory of one stream's tensor may be used again before another stream is done with it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memtide._capi.client import Places
from memtide._memory.address_map import AddressMap
from memtide._memory.leases import LeaseLedger
from memtide._memory.tensor_parts import PLAIN_TYPES
from memtide._util.devices import gpu_module
from memtide._util.origin import is_memtide_s
from memtide._util.script_modes import without_modes

CAST = torch.ops.aten._to_copy.default
_NARROWER = (torch.bfloat16, torch.float16)
# Smaller copies, as those of biases, are not worth an operation.
_SMALLEST_BYTES = 1 << 14
_SWEEP_EVERY = 64  # Operations, after which copies that have ended are forgotten.
_NO_PLACES = Places(())
# Torch's own frames between a call and `__torch_dispatch__`.
_BETWEEN = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")

T = TypeVar("T")


class _Copy:
    """One copy."""

    def __init__(
        self, weight: torch.Tensor, copy: torch.Tensor, places: range, stream: Any
    ) -> None:
        storage = copy.untyped_storage()
        self.bytes_of_weight = weight.detach()  # The script may put others under the parameter.
        self.places = Places(places)
        self.stream = stream
        self.size_bytes = storage.nbytes()
        self.dtype, self.layout = copy.dtype, (copy.storage_offset(), copy.size(), copy.stride())
        self.is_empty = False
        self.is_torchs = False  # An operation has read it within the call that has cast it.
        self.uses = 0  # Operations that run, of any thread.
        self._storage = StorageWeakRef(storage)  # While it exists, no other has this address.
        self.address: int = storage._cdata

    @property
    def has_ended(self) -> bool:
        """Whether no tensor is over the storage any more."""
        return bool(self._storage.expired())

    def empty(self) -> None:
        """Gives the memory back."""
        storage = self._live_storage()
        if storage is not None:
            self.is_empty = True
            storage.resize_(0)

    def fill(self) -> None:
        """Fills the storage, if it is empty. REQUIRES: the weight's places are leased."""
        storage = self._live_storage()
        if not self.is_empty or storage is None:
            return
        weight = self.bytes_of_weight
        try:
            with _on(self.stream), without_modes(), torch.no_grad():
                storage.resize_(self.size_bytes)
                whole = torch.empty(0, dtype=self.dtype, device=weight.device)
                whole.set_(storage, *self.layout).copy_(weight)
        except BaseException:
            self.empty()
            raise
        self.is_empty = False  # Other threads look at it without the lock.

    def _live_storage(self) -> Any:
        return torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)


class AutocastCopies:
    """The copies of one process. Safe to use from any thread.

    Methods that fill copies raise torch.OutOfMemoryError, or ResourceExhausted as LeaseLedger.using
    does. The copies that they have not filled are as they were.
    """

    def __init__(self, addresses: AddressMap, ledger: LeaseLedger) -> None:
        self._addresses = addresses
        self._ledger = ledger
        # Calls a function, and makes room if it finds no memory. Another part sets it.
        self.with_room: Callable[[Callable[[], Any]], Any] = lambda run: run()
        self._copies: dict[int, _Copy] = {}  # By the address of their storage's object.
        # Places of their weights, and of some weights whose copies have ended.
        self._places: set[int] = set()
        self._used: set[_Copy] = set()  # By operations; some have ended, perhaps.
        # `unsure`: copies of its calls that may still run. A call keeps a frame, with all that is
        # in it, so it goes as soon as it is known whose the copy is.
        self._thread = threading.local()
        self._looks = 0
        self._stream: Any = None  # On which copies are used; None: on no GPU, or none yet.
        self._are_left = False  # Whether no more is emptied.
        self._lock = threading.RLock()

    @property
    def exist(self) -> bool:
        """Whether there are any, or were when it was last looked."""
        return bool(self._copies)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is over a copy's storage."""
        if not self._copies:
            return False
        self._drop_scripts()
        return tensor.untyped_storage()._cdata in self._copies

    def note(self, weight: Any, copy: torch.Tensor) -> None:
        """After a cast under lease dispatch of a tensor in chunks."""
        if (
            not isinstance(weight, torch.nn.Parameter)
            or weight.dtype is not torch.float32
            or copy.dtype not in _NARROWER
            or copy.device != weight.device
            or copy.nbytes < _SMALLEST_BYTES
            or type(copy) is not torch.Tensor
            or self._ledger.holding  # Operations of other threads are not seen now.
            or self._ledger.script_holds
            or not _is_in_autocast()
            or _has_hooks_of_script()
            or (call := _Call.of_script()) is None
        ):
            return
        with self._lock:
            self._see_stream(copy.device)
            if self._are_left:
                return
            places = self._addresses.element_places(weight)
            made = _Copy(weight, copy, places, self._stream)
            self._copies[made.address] = made
            self._places.update(places)
            self._unsure()[made.address] = call

    def fill(self, args: Iterable[Any]) -> list[_Copy]:
        """Before an operation, or a view: fills the copies among its arguments, and returns them.
        They stay filled until `end_use`."""
        self._drop_scripts()
        with self._lock:
            self._looks += 1
            if self._looks % _SWEEP_EVERY == 0:
                self.forget_ended()
            copies = [
                copy
                for tensor in _tensors_in(args)
                if (copy := self._copies.get(tensor.untyped_storage()._cdata)) is not None
            ]
            if not copies:
                return copies
            self._see_stream(copies[0].bytes_of_weight.device)
            for copy in copies:
                copy.uses += 1
        try:
            if any(copy.is_empty for copy in copies):
                self.empty_used()
                self._fill(copies)
            if self._are_left:  # This thread's stream may not be that of the fills.
                _wait_for_fills(copies)
        except BaseException:
            self.end_use(copies, read=False, changed=False)
            raise
        return copies

    def end_use(self, copies: list[_Copy], *, read: bool, changed: bool) -> None:
        """After the operation of `fill`. `read`: it was no view. `changed`: it may have written to
        its arguments."""
        unsure = self._unsure()
        with self._lock:
            for copy in copies:
                copy.uses -= 1
                if not read or self._copies.get(copy.address) is not copy:
                    continue
                if unsure.pop(copy.address, None) is not None:
                    copy.is_torchs = True
                if copy.is_torchs:
                    self._used.add(copy)
                else:  # Another thread's.
                    del self._copies[copy.address]
        if changed:
            self._leave(copies)

    def empty_used(self) -> None:
        """Gives back the memory of copies that operations have used, and none uses now."""
        if not self._used or self._ledger.holding:
            return
        with self._lock:
            if self._are_left:
                return
            used = {copy for copy in self._used if not copy.uses}
            self._used -= used
            for copy in used:
                copy.empty()

    def before_writing(self, places: Set[int]) -> None:
        """Before something writes to these places: the copies of weights there stay as they are."""
        if not self._copies or self._places.isdisjoint(places):
            return
        with self._lock:
            self.forget_ended()
            copies = [c for c in self._copies.values() if not places.isdisjoint(c.places.numbers)]
        self._leave(copies)
        _wait_for_fills(copies)  # They read what is written next.

    def before_hold(self, places: Set[int], chunks: int) -> None:
        """Before code that is not seen uses these places, and `chunks` are leased for longer than
        an operation: copies of weights there stay as they are, and those that could not be filled
        beside them."""
        self.before_writing(places)
        if self._copies:
            with self._lock:
                room = self._ledger.budget - chunks
                copies = [copy for copy in self._copies.values() if copy.places.count > room]
            self._leave(copies)

    def entering_hooks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.graph.saved_tensors_hooks.__enter__: the script's hooks get copies that
        were made before."""

        @functools.wraps(original)
        def __enter__(hooks: Any) -> Any:
            if self._copies and _is_scripts(hooks.pack_hook):
                self.leave_all()
            return original(hooks)

        return __enter__

    def before_unseen(self, tensors: Iterable[Any]) -> None:
        """Before code that is not seen uses these tensors: those that are copies stay filled."""
        if self._copies:
            self.end_use(self.fill(tensors), read=False, changed=True)

    def leave_all(self) -> None:
        """From now on operations are not seen: all copies stay as they are."""
        if self._copies:
            with self._lock:
                copies = list(self._copies.values())
            self._leave(copies)

    def forget_ended(self) -> None:
        """Forgets the copies that have ended, whose weights it holds until then."""
        self._drop_scripts()
        with self._lock:
            self._copies = {at: copy for at, copy in self._copies.items() if not copy.has_ended}
            self._used.intersection_update(self._copies.values())
            self._places = {p for copy in self._copies.values() for p in copy.places.numbers}

    def _leave(self, copies: list[_Copy]) -> None:
        if not copies:
            return
        with self._lock:
            for copy in copies:
                copy.uses += 1
        try:
            self._fill(copies)
            self._forget(copies)
        finally:
            with self._lock:
                for copy in copies:
                    copy.uses -= 1

    def _forget(self, copies: Iterable[_Copy]) -> None:
        with self._lock:
            for copy in copies:
                self._copies.pop(copy.address, None)
                self._used.discard(copy)

    def _fill(self, copies: list[_Copy]) -> None:
        # Others may wait here while this thread waits for a lease, or for room.
        def run() -> None:
            for copy in copies:
                if copy.is_empty:
                    with self._ledger.using(copy.places, _NO_PLACES), self._lock:
                        copy.fill()

        self.with_room(run)

    def _drop_scripts(self) -> None:
        """Forgets copies that the script has made: their call does not run any more."""
        unsure = self._unsure()
        if not unsure:
            return
        for address in [at for at, call in list(unsure.items()) if not call.is_running()]:
            unsure.pop(address, None)
            copy = self._copies.get(address)
            if copy is not None and not copy.is_torchs:
                self._forget([copy])

    def _unsure(self) -> dict[int, _Call]:
        unsure: dict[int, _Call] | None = getattr(self._thread, "unsure", None)
        if unsure is None:
            unsure = self._thread.unsure = {}
        return unsure

    def _see_stream(self, device: torch.device) -> None:
        module = gpu_module(device.type)
        if module is None:
            return
        stream = module.current_stream(device)
        if self._stream is None:
            self._stream = stream
        self._are_left = self._are_left or stream != self._stream


class _Call:
    """A call of the script's in this thread: a frame, and the instruction that it runs."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._instruction = frame.f_lasti

    @staticmethod
    def of_script() -> _Call | None:
        """The call that has led to the dispatch of this operation; None: none in this thread."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
            frame = frame.f_back
        frame = None if frame is None else frame.f_back
        while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
            frame = frame.f_back
        return None if frame is None else _Call(frame)

    def is_running(self) -> bool:
        """Whether it has not returned."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None and frame.f_lasti == self._instruction


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
    """Whether this thread is in a region of autocast. Within dispatch `torch.is_autocast_enabled`
    says no, always."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


def _has_hooks_of_script() -> bool:
    """Whether hooks for saved tensors are on top that are neither torch's nor memtide's."""
    pair = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return pair is not None and _is_scripts(pair[0])


def _is_scripts(function: Any) -> bool:
    in_torch = str(getattr(function, "__module__", "")).startswith("torch.")
    return not in_torch and not is_memtide_s(function)


def _wait_for_fills(copies: list[_Copy]) -> None:
    """This thread's stream waits for what others have filled."""
    for stream in {copy.stream for copy in copies}:
        with _on(stream):
            pass


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if type(value) in PLAIN_TYPES:
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)
