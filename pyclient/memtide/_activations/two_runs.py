"""The tensors that autograd saves in two runs of a block, which must be the same bits.

Tensors that it saves in the first run go on to the hooks below, and may leave for chunks. In the
second run each tensor is compared when autograd would save it, and nothing is kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memtide._activations.blocks import bytes_of
from memtide._activations.dear_results import HookPair
from memtide._activations.recompute import top_hooks

Function = Callable[..., Any]
CHANGED_IN_PLACE = "it changes in place what autograd has saved"
_DIFFERS = "what autograd saves of it differs if it runs again"


class FirstRun:
    """The tensors that autograd saves while a block runs. They go on to the hooks that are set."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        """`refuse` is called if backward shows a reason against recomputing the block."""
        self._refuse = refuse
        self._uses: set[tuple[int, int]] = set()  # Backward passes, and numbers of tensors.
        self._hooks = top_hooks()
        self._packed: list[_Packed] = []
        # Each storage once. One that has left keeps its number while there is a weak reference.
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def bytes(self) -> int:
        """Bytes of what was counted."""
        return sum(size_bytes for _, size_bytes in self._storages.values())

    def count(self, tensor: torch.Tensor) -> None:
        """Counts what a tensor lies in, unless it is a parameter."""
        if bytes_of([tensor]):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Records within a block."""
        with _hooks_set(self._pack, self._unpack):
            yield

    @property
    def number(self) -> int:
        """How many tensors were saved."""
        return len(self._packed)

    def reason_against(self, number: int, tensor: torch.Tensor) -> str | None:
        """Why a tensor that autograd would save, as the `number`th one, shows that the block cannot
        be recomputed."""
        if number >= len(self._packed):
            return _DIFFERS
        try:
            saved = _value(self._hooks, self._packed[number])
        except RuntimeError as error:
            if "inplace" not in str(error):
                raise
            return CHANGED_IN_PLACE
        return None if same_bits(saved, tensor) else _DIFFERS

    def forget(self) -> None:
        """Keeps nothing any longer: autograd keeps the pack hook, and with it this object, until
        backward has passed."""
        self._packed.clear()
        self._storages.clear()

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        self.count(tensor)
        if self._hooks is not None:
            handle = self._hooks[0](tensor)
        else:
            handle = tensor if tensor.is_leaf else tensor.detach()
        packed = _Packed(len(self._packed), handle, tensor._version)
        self._packed.append(packed)
        return packed

    def _unpack(self, packed: _Packed) -> Any:
        use = torch._C._current_graph_task_id(), packed.number
        if use in self._uses:
            self._refuse(
                "a tensor that autograd saves in it is asked for twice in one backward pass"
            )
        self._uses.add(use)
        return _value(self._hooks, packed)


class SecondRun:
    """Compares what autograd would save in a second run, and keeps nothing of it."""

    def __init__(self, first: FirstRun, synchronize: Callable[[], None]) -> None:
        self._first = first
        self._synchronize = synchronize
        self._number = 0
        self._reason: str | None = None
        self.seconds = 0.0  # Spent here.

    @contextlib.contextmanager
    def compared(self) -> Iterator[None]:
        """Compares within a block."""
        with _hooks_set(self._pack, _never_unpacked):
            yield

    def reason(self) -> str | None:
        """Why the block cannot be recomputed, after the run."""
        if self._reason is None and self._number != self._first.number:
            return _DIFFERS
        return self._reason

    def _pack(self, tensor: torch.Tensor) -> None:
        self._synchronize()
        began_s = time.monotonic()
        if self._reason is None:
            self._reason = self._first.reason_against(self._number, tensor)
        self._number += 1
        self._synchronize()
        self.seconds += time.monotonic() - began_s


class _Packed(NamedTuple):
    number: int
    handle: Any  # The tensor as packed by the hooks below; the tensor itself, if there are none.
    version: int


@contextlib.contextmanager
def _hooks_set(pack: Function, unpack: Function) -> Iterator[None]:
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    try:
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _never_unpacked(_nothing: None) -> torch.Tensor:
    raise RuntimeError("the graph of a block's second run has no saved tensors")


def _value(hooks: HookPair | None, packed: _Packed) -> Any:
    _, handle, version = packed
    if hooks is not None:
        return hooks[1](handle)
    if handle._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{handle.type()} {list(handle.size())}] is at version {handle._version}; "
            f"expected version {version} instead."
        )
    return handle


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, NaN included."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return torch.equal(
        *(
            t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            for t in (one, other)
        )
    )
