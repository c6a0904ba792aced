"""The object that autograd keeps for a tensor under memtide's saved-tensor hooks.

Setting any saved-tensor hooks changes torch: it does not notice any more that a saved tensor is
changed in place before backward uses it, and computes wrong gradients where it would raise. So a
`SavedTensor` notes the version when autograd saves the tensor, and compares it when autograd asks
for the tensor, with torch's own error.

It holds a detached tensor: what a node saves of its own output would otherwise refer to the node
itself, and neither would ever be freed. A detached tensor shares the version counter with the
tensor it was made of.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch

from memtide._activations.recording import SavedStorage
from memtide._activations.version_counter import emptied


class Counted(Protocol):
    """Counts a storage: memtide._activations.kept_storages.KeptStorage."""

    record: SavedStorage | None


class SavedTensor:
    """One tensor that autograd has saved. Autograd owns it, and drops it with the graph."""

    __slots__ = ("__weakref__", "_counter", "_origin", "_version", "storage", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        # First, so that it is released before the tensor: an address of a storage is then never in
        # the table of storages when another storage gets it.
        # The counter of the storage under it, which ends with its last tensor.
        self.storage: Counted | None = None
        node = tensor.grad_fn
        # A parameter is held itself: its bytes may be moved to a chunk meanwhile.
        leaf = node is None and tensor.requires_grad
        self.tensor = tensor if leaf else tensor.detach()
        self._origin = None if node is None else (tensor.output_nr, node.name())
        self._version = tensor._version
        self._counter: torch.Tensor | None = None  # None: `tensor` has the version counter.

    @property
    def is_moved(self) -> bool:
        """Whether it is over another storage than autograd has saved."""
        return self._counter is not None

    def unpack(self) -> torch.Tensor:
        """The tensor as it was saved. RuntimeError, as torch's: it was changed in place since."""
        counter = self.tensor if self._counter is None else self._counter
        version = counter._version
        if version != self._version:
            raise RuntimeError(self._changed(version))
        if self.storage is not None and self.storage.record is not None:
            self.storage.record.unpack()
        return self.tensor

    def replace(self, storage: torch.UntypedStorage) -> None:
        """Puts the tensor over a storage that has the same bytes. An earlier change in place is
        still noticed after that."""
        before = self.tensor
        after = torch.empty(0, dtype=before.dtype, device=before.device)
        after.set_(storage, before.storage_offset(), before.size(), before.stride())
        if before.is_conj():
            after = torch._conj(after)
        if before.is_neg():
            after = torch._neg_view(after)
        if self._counter is None:
            self._counter = emptied(before)
        self.tensor = after

    def _changed(self, version: int) -> str:
        tensor = self.tensor
        origin = ""
        if self._origin is not None:
            origin = f", which is output {self._origin[0]} of {self._origin[1]},"
        return (
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor.type()} {list(tensor.size())}]{origin} is at version {version}; "
            f"expected version {self._version} instead.{_hint()}"
        )


class Reference:
    """A tensor that is not plain (a subclass, a fake one), saved as torch does without hooks."""

    __slots__ = ("_tensor", "_version")
    is_moved = False

    def __init__(self, tensor: Any) -> None:
        leaf = tensor.grad_fn is None
        self._tensor = tensor if leaf else tensor.detach()
        self._version = tensor._version

    def unpack(self) -> Any:
        """As SavedTensor.unpack."""
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: it is at version {self._tensor._version}; expected version "
                f"{self._version} instead.{_hint()}"
            )
        return self._tensor


def _hint() -> str:
    if torch.is_anomaly_enabled():
        return (
            " Hint: the backtrace further above shows the operation that failed to compute its "
            "gradient. The variable in question was changed in there or anywhere later. Good luck!"
        )
    return _hint_without_anomaly_mode()


@functools.cache
def _hint_without_anomaly_mode() -> str:
    """The end of torch's error. It differs between versions of torch, so torch is made to raise one
    without hooks."""
    hooks = torch._C._autograd
    pairs = []
    while (pair := hooks._top_saved_tensors_default_hooks(True)) is not None:
        hooks._pop_saved_tensors_default_hooks()
        pairs.append(pair)
    try:
        with torch.enable_grad():
            result = torch.ones(1, requires_grad=True).exp()
            result.add_(1).backward()
    except RuntimeError as error:
        return " Hint:" + str(error).partition(" Hint:")[2]
    finally:
        for pair in reversed(pairs):
            hooks._push_saved_tensors_default_hooks(*pair)
    return ""
