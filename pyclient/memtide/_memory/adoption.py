"""Adoption: what moves into chunks, how it gets there, and how it comes back.

To adopt a tensor is to copy the bytes of its storage to a span and to point the tensor there: same
object, same shape, strides and bytes, another address. Parameters, gradients and optimizer states
are adopted if

- they are dense tensors of torch's own class, on the device of the chunks, of at least 1 KiB:
  smaller ones gain nothing, and many of them would share a chunk with tensors that are needed at
  other moments;
- they are the only user of their storage, and all of it: where a script holds another tensor over
  the same bytes (`flat[a:b]`, `p.detach()`, a NumPy view, shared memory), moving one of the two
  would end the sharing, so both stay where they are;
- their memory is torch's (storage_memory.py): of other memory, such as that of the array that
  torch.from_numpy was called with, somebody else may have the address.

A tensor that is not adopted now is looked at again at the next forward pass or optimizer step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from memtide._capi.client import Kind, Places
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.storage_memory import is_torchs
from memtide._memory.tensor_manager import TensorManager, is_plain, local_part, tensors_in


def storage_users(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


_lone_tensor = torch.empty(1)
USERS_OF_ONE_TENSOR = storage_users(_lone_tensor.untyped_storage())


@contextlib.contextmanager
def ordinary_tensors() -> Iterator[None]:
    """In the block, torch's operations record nothing, and make tensors that can be trained. Under
    torch.inference_mode they would make others, and a parameter that is pointed to one becomes one:
    a script may evaluate a model before it trains it."""
    # The first of the two turns gradients on.
    with torch.inference_mode(False), torch.no_grad():
        yield


def adopt(
    manager: TensorManager,
    tensor: torch.Tensor,
    kind: Kind,
    row: int = 0,
    parameter: torch.Tensor | None = None,
) -> bool:
    """Moves the tensor into a chunk if that is possible; returns whether it is in one now.
    `parameter`: the one to which a gradient or state belongs."""
    if not _is_adoptable(manager, tensor):
        return manager.manages(tensor)
    if kind is not Kind.GRADIENT:
        manager.before_adoption()
    with ordinary_tensors():
        target = manager.new_like_storage_of(tensor, kind, row, parameter)
        if target is None:
            return False
        # Torch starts threads for a large copy. A script may be about to fork, and to use torch in
        # the child: there these threads are missing, and it would wait for them without end.
        manager.copy_bytes(tensor, target, starts_threads=kind is not Kind.PARAMETER)
        tensor.data = target
    if kind is Kind.PARAMETER:
        manager.leave_behind(target.untyped_storage().nbytes())
    return True


def adopt_together(
    manager: TensorManager, tensors: Sequence[torch.Tensor], kind: Kind
) -> list[torch.Tensor]:
    """Moves a storage into a chunk, and returns the same views of it there. The first tensor is the
    whole storage. Empty: it stays where it is, since it cannot be moved or has other users."""
    whole = tensors[0]
    if not _is_adoptable(manager, whole, users=len(tensors)):
        return []
    with ordinary_tensors():
        target = manager.new_like_storage_of(whole, kind)
        if target is None:
            return []
        manager.copy_bytes(whole, target, starts_threads=False)
        storage = target.untyped_storage()
        return [
            torch.empty(0, dtype=t.dtype, device=manager.device).set_(
                storage, t.storage_offset(), t.size(), t.stride()
            )
            for t in tensors
        ]


def adopt_gradient(manager: TensorManager, parameter: torch.Tensor) -> bool:
    """Moves a parameter's gradient into a chunk; returns whether it is in one now."""
    manager.free_dead()
    gradient = parameter.grad
    return gradient is not None and adopt(manager, gradient, Kind.GRADIENT, parameter=parameter)


def adopt_part_of_gradient(manager: TensorManager, parameter: torch.Tensor) -> None:
    """Copies this process's shard of the gradient of a sharded parameter into a chunk. It lies in a
    buffer with other gradients, which is freed when the last one has left it. REQUIRES: there is no
    view of it yet."""
    gradient = parameter.grad
    if gradient is None or not _is_movable(manager, part := local_part(gradient)):
        return
    manager.free_dead()
    with ordinary_tensors():
        target = manager.new_gradient(part, parameter)
        if target is None:
            return
        with manager.leased(Places(manager.span_places(target)), writing=True):
            target.copy_(part)
    gradient._local_tensor = target  # type: ignore[attr-defined]  # The gradient is a DTensor.


def adopt_state_of(manager: TensorManager, parameter: Any, state: Any) -> None:
    """Moves the optimizer states of one parameter, at any depth, into chunks. Those of a small
    parameter stay: it is stepped in this process, and the content of chunks must be what the
    daemon's steps have made of it."""
    owner = parameter if isinstance(parameter, torch.Tensor) else None
    if owner is not None and owner.nbytes < SMALLEST_BYTES:
        return
    row = 0
    for tensor in tensors_in(state):
        row += manager.manages(tensor) or adopt(
            manager, tensor, Kind.OPTIMIZER_STATE, row, parameter=owner
        )


def move_to(manager: TensorManager, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Points a managed tensor to `storage` instead of its own. False: it stays, as its storage has
    another size or other users, or the tensor is not all of it."""
    present = tensor.untyped_storage()
    if (
        not manager.manages(tensor)
        or present.nbytes() != storage.nbytes()
        or tensor.storage_offset() != 0
        or storage_users(present) > USERS_OF_ONE_TENSOR
    ):
        return False
    with ordinary_tensors():
        layout = torch.empty(0, dtype=tensor.dtype, device=manager.device)
        tensor.data = layout.set_(storage, 0, tensor.size(), tensor.stride())
    return True


def restore(manager: TensorManager, tensor: torch.Tensor) -> None:
    """Moves a managed tensor's bytes back to ordinary memory."""
    with ordinary_tensors():
        size_bytes = tensor.untyped_storage().nbytes()
        target = torch.empty(size_bytes, dtype=torch.uint8, device=manager.device)
        manager.copy_bytes(tensor, target)
        layout = torch.empty(0, dtype=tensor.dtype, device=manager.device)
        tensor.data = layout.set_(
            target.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def restore_state(manager: TensorManager, state: Any) -> None:
    """Moves the managed tensors of an optimizer state back to ordinary memory."""
    for tensor in tensors_in(state):
        if manager.manages(tensor):
            restore(manager, tensor)


def _is_movable(manager: TensorManager, tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements may be in a chunk, and are in none."""
    if not is_plain(tensor) or tensor.device != manager.device:
        return False
    if tensor.is_quantized or tensor.is_inference():
        return False
    small = tensor.numel() * tensor.itemsize < SMALLEST_BYTES
    return not small and not manager.manages(tensor) and tensor.grad_fn is None


def _is_adoptable(manager: TensorManager, tensor: torch.Tensor, users: int = 1) -> bool:
    """Whether the tensor can be moved from its storage, which has `users` tensors over it."""
    if not _is_movable(manager, tensor):
        return False
    storage = tensor.untyped_storage()
    movable = (
        storage.nbytes() == tensor.numel() * tensor.itemsize
        and tensor.storage_offset() == 0
        and storage_users(storage) < USERS_OF_ONE_TENSOR + users
        and not (tensor.is_cpu and storage.is_shared())
        and not (tensor.is_conj() or tensor.is_neg())
    )
    if not movable or is_torchs(storage):
        return movable
    manager.leave_outside(tensor)
    return False
