"""Adoption: what moves into chunks, how it gets there, and how it comes back.

To adopt a tensor is to copy the bytes of its storage to a span and to point the tensor there: same
object, same shape, strides and bytes, another address. Parameters, gradients, optimizer states and
whatever else modules hold (held_tensors.py) are adopted if

- they are dense tensors with memory of their own, on the device of the chunks, of at least 1 KiB:
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
from time import perf_counter_ns
from typing import Any

import torch

from memtide._capi.client import Kind, Places
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.storage_copies import copy_bytes
from memtide._memory.storage_memory import is_torchs
from memtide._memory.tensor_parts import PLAIN_TYPES, has_own_memory, local_part, tensors_in
from memtide._util.script_modes import without_modes_of_script


def storage_users(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


_lone_tensor = torch.empty(1)
USERS_OF_ONE_TENSOR = storage_users(_lone_tensor.untyped_storage())


@contextlib.contextmanager
def ordinary_tensors() -> Iterator[None]:
    """In the block, torch's operations record nothing, pass no mode of the script, and make tensors
    that can be trained. Under torch.inference_mode they would make others, and a parameter that is
    pointed to one becomes one: a script may evaluate a model before it trains it."""
    # The first of the two turns gradients on. A tensor of a library's class is moved as it lies.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C.DisableTorchFunctionSubclass(),
        without_modes_of_script(),
    ):
        yield


def adopt(
    memory: ManagedMemory,
    tensor: torch.Tensor,
    kind: Kind,
    row: int = 0,
    parameter: torch.Tensor | None = None,
) -> bool:
    """Moves the tensor into a chunk if that is possible; returns whether it is in one now.
    `parameter`: the one to which a gradient or state belongs."""
    if not _is_adoptable(memory, tensor):
        return memory.addresses.manages(tensor)
    if kind is not Kind.GRADIENT:
        memory.before_adoption()
    with ordinary_tensors():
        target = memory.allocator.like_storage_of(tensor, kind, row, parameter)
        if target is None:
            return False
        # Torch starts threads for a large copy. A script may be about to fork, and to use torch in
        # the child: there these threads are missing, and it would wait for them without end.
        copy_bytes(memory, tensor, target, starts_threads=kind is not Kind.PARAMETER)
        tensor.data = target
    if kind is Kind.PARAMETER:
        memory.left.leave(target.untyped_storage().nbytes())
    return True


def adopt_together(
    memory: ManagedMemory, tensors: Sequence[torch.Tensor], kind: Kind
) -> list[torch.Tensor]:
    """Moves a storage into a chunk, and returns the same views of it there. The first tensor is the
    whole storage. Empty: it stays where it is, since it cannot be moved or has other users."""
    whole = tensors[0]
    if not _is_adoptable(memory, whole, users=len(tensors)):
        return []
    with ordinary_tensors():
        target = memory.allocator.like_storage_of(whole, kind)
        if target is None:
            return []
        copy_bytes(memory, whole, target, starts_threads=False)
        storage = target.untyped_storage()
        return [
            torch.empty(0, dtype=t.dtype, device=memory.addresses.device).set_(
                storage, t.storage_offset(), t.size(), t.stride()
            )
            for t in tensors
        ]


def adopt_gradient(memory: ManagedMemory, parameter: torch.Tensor) -> bool:
    """Moves a parameter's gradient into a chunk; returns whether it is in one now."""
    began_ns, waited_ns = perf_counter_ns(), memory.ledger.waited_ns
    memory.pressure.free_dead_gradients()
    gradient = parameter.grad
    if gradient is None or not adopt(memory, gradient, Kind.GRADIENT, parameter=parameter):
        return False
    waited_ns = memory.ledger.waited_ns - waited_ns
    memory.costs.gradients += 1
    memory.costs.gradient_ns += perf_counter_ns() - began_ns - waited_ns
    return True


def adopt_part_of_gradient(memory: ManagedMemory, parameter: torch.Tensor) -> None:
    """Copies this process's shard of the gradient of a sharded parameter into a chunk. It lies in a
    buffer with other gradients, which is freed when the last one has left it. REQUIRES: there is no
    view of it yet."""
    gradient = parameter.grad
    if gradient is None or not _is_movable(memory, part := local_part(gradient)):
        return
    memory.pressure.free_dead_gradients()
    with ordinary_tensors():
        target = memory.allocator.like(part, Kind.GRADIENT, 0, parameter)
        if target is None:
            return
        with memory.ledger.copying(Places(memory.addresses.span_places(target)), writing=True):
            target.copy_(part)
    gradient._local_tensor = target  # type: ignore[attr-defined]  # The gradient is a DTensor.


def adopt_state_of(memory: ManagedMemory, parameter: Any, state: Any) -> None:
    """Moves the optimizer states of one parameter, at any depth, into chunks. The states of a small
    parameter stay: it is stepped in this process, and the content of chunks must be what the
    daemon's steps have made of it."""
    owner = parameter if isinstance(parameter, torch.Tensor) else None
    if owner is not None and owner.nbytes < SMALLEST_BYTES or _is_settled(memory, state):
        return
    row = 0
    for tensor in tensors_in(state):
        row += memory.addresses.manages(tensor) or adopt(
            memory, tensor, Kind.OPTIMIZER_STATE, row, parameter=owner
        )


def _is_settled(memory: ManagedMemory, state: Any) -> bool:
    """Whether plain tensors are all that the state has, and each is in a chunk or too small for
    one. Each step looks at all states twice, and most are so."""
    if type(state) is not dict:
        return False
    for value in state.values():
        if type(value) is torch.Tensor:
            # Sparse tensors have no `nbytes`.
            is_small = value.numel() * value.itemsize < SMALLEST_BYTES
            if not is_small and not memory.addresses.manages(value):
                return False
        elif isinstance(value, torch.Tensor | dict | list | tuple):
            return False
    return True


def move_to(memory: ManagedMemory, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Points a managed tensor to `storage` instead of its own. False: it stays, as its storage has
    another size or other users, or the tensor is not all of it."""
    present = tensor.untyped_storage()
    if (
        not memory.addresses.manages(tensor)
        or present.nbytes() != storage.nbytes()
        or tensor.storage_offset() != 0
        or storage_users(present) > USERS_OF_ONE_TENSOR
    ):
        return False
    with ordinary_tensors():
        layout = torch.empty(0, dtype=tensor.dtype, device=memory.addresses.device)
        tensor.data = layout.set_(storage, 0, tensor.size(), tensor.stride())
    return True


def restore(memory: ManagedMemory, tensor: torch.Tensor, *, with_bytes: bool = True) -> None:
    """Moves a managed tensor back to ordinary memory, with its bytes or without."""
    with ordinary_tensors():
        size_bytes = tensor.untyped_storage().nbytes()
        target = torch.empty(size_bytes, dtype=torch.uint8, device=memory.addresses.device)
        if with_bytes:
            copy_bytes(memory, tensor, target)
        layout = torch.empty(0, dtype=tensor.dtype, device=memory.addresses.device)
        tensor.data = layout.set_(
            target.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def restore_state(memory: ManagedMemory, state: Any) -> None:
    """Moves the managed tensors of an optimizer state back to ordinary memory."""
    for tensor in tensors_in(state):
        if memory.addresses.manages(tensor):
            restore(memory, tensor)


def _is_movable(memory: ManagedMemory, tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements may be in a chunk, and are in none."""
    if type(tensor) in PLAIN_TYPES:
        return _may_move(memory, tensor)
    with torch._C.DisableTorchFunctionSubclass():  # The class may answer for attributes itself.
        return _may_move(memory, tensor)


def _may_move(memory: ManagedMemory, tensor: torch.Tensor) -> bool:
    if not has_own_memory(tensor) or tensor.device != memory.addresses.device:
        return False
    if tensor.is_quantized or tensor.is_inference():
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    small = tensor.numel() * tensor.itemsize < SMALLEST_BYTES
    return not small and not memory.addresses.manages(tensor) and tensor.grad_fn is None


def _is_adoptable(memory: ManagedMemory, tensor: torch.Tensor, users: int = 1) -> bool:
    """Whether the tensor can be moved from its storage, which has `users` tensors over it."""
    if (
        not _is_movable(memory, tensor)
        or not is_alone(tensor, users)
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return False
    if is_torchs(tensor.untyped_storage()):
        return True
    memory.left.stay(tensor)
    return False


def is_alone(tensor: torch.Tensor, users: int = 1) -> bool:
    """Whether the tensor is all of its storage, which has `users` tensors over it, and is in no
    other process."""
    storage = tensor.untyped_storage()
    return (
        storage.nbytes() == tensor.numel() * tensor.itemsize
        and tensor.storage_offset() == 0
        and storage_users(storage) < USERS_OF_ONE_TENSOR + users
        and not (tensor.is_cpu and storage.is_shared())
    )
