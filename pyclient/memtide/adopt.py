"""Which tensors live in chunks, and how they get there.

To adopt a tensor is to copy the bytes of its storage to a span and to point the tensor there: same
object, same shape, strides and bytes, another address. Adopted are parameters, their gradients and
what optimizers keep, when

- they are dense tensors of torch's own class, on the device that the chunks are on, at least 1 KiB:
  smaller ones gain nothing, and many of them would share a chunk with what is needed at other
  moments;
- they are the only user of their storage, all of it: where a script holds another tensor over the
  same bytes (`flat[a:b]`, `p.detach()`, a NumPy view, shared memory), pointing one of the two
  elsewhere would part them, so both stay where they are.

What is not adopted now is looked at again later: at the next forward pass or optimizer step.

Optimizer states lie in *rows*: all parameters' first state in one arena, the second in another. So
a chunk of each row holds the states of the same parameters, as the chunk lists of PatrickStar do
(arXiv 2108.05818, section 6), and a step needs each chunk once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from memtide._native import Client, Kind, Places
from memtide._steps import MOST_STATES
from memtide.arena import Arena, Storages
from memtide.layouts import lie_alike
from memtide.leases import Ledger, slots_of
from memtide.packing import SMALLEST_BYTES, aligned

_NO_PLACES = Places(())
_CACHED_BYTES = 256 * 2**20
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _storage_users(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


_lone_tensor = torch.empty(1)
_USERS_OF_ONE_TENSOR = _storage_users(_lone_tensor.untyped_storage())


def address_of(tensor: torch.Tensor) -> int:
    """Where the tensor's first element is; 0: it is not a dense tensor of torch's own class."""
    if type(tensor) in _PLAIN_TYPES and tensor.layout is torch.strided:
        return tensor.data_ptr()
    return 0


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor has in this process; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def _address_of_subclass(tensor: torch.Tensor) -> int:
    """As address_of for a class of a script's own, which may be over managed memory too."""
    if type(tensor) in _PLAIN_TYPES or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # Tensors that only stand for others have no memory.
        return 0


class Adopter:
    """Moves tensors into the arenas of one client."""

    def __init__(self, client: Client, ledger: Ledger) -> None:
        properties = client.properties
        self.client = client
        self.ledger = ledger
        self.base = properties.base
        self.end = properties.base + properties.places * properties.chunk_bytes
        self.chunk_bytes = properties.chunk_bytes
        storages = self._storages = Storages(client)
        self.device = storages.device
        self._arenas: dict[tuple[Kind, int], Arena] = {}
        self._coming_bytes = 0  # In each row of states, of the optimizer that began last.
        self._owner = os.getpid()
        self._left_behind = 0  # Bytes of ordinary memory that adopted tensors were in.

    @property
    def here(self) -> bool:
        """False in a forked child: the range is not inherited."""
        return os.getpid() == self._owner

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are in a chunk."""
        return self.in_range(address_of(tensor))

    def in_range(self, address: int) -> bool:
        """Whether an address is in the client's range."""
        return self.base <= address < self.end

    def places_of(self, address: int, size_bytes: int) -> range:
        """The places under `size_bytes` bytes from `address`. REQUIRES: within the range."""
        first = (address - self.base) // self.chunk_bytes
        return range(first, (address + size_bytes - 1 - self.base) // self.chunk_bytes + 1)

    def element_places(self, tensor: torch.Tensor) -> range:
        """The places of a tensor's own elements, of whatever class; none: it is not managed."""
        tensor = local_part(tensor)
        address = address_of(tensor) or _address_of_subclass(tensor)
        if not self.in_range(address) or not tensor.numel():
            return range(0)
        last = sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
        return self.places_of(address, (last + 1) * tensor.itemsize)

    def span_places(self, tensor: torch.Tensor) -> range:
        """The places of a managed tensor's whole storage."""
        storage = tensor.untyped_storage()
        return self.places_of(storage.data_ptr(), storage.nbytes())

    def bytes_at(self, address: int, size_bytes: int) -> torch.Tensor:
        """A tensor of uint8 over bytes of the range, whosever they are."""
        storage = self._storages.beside(address, size_bytes)
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def live(self) -> list[tuple[int, int]]:
        """Addresses, from and to before, of everything that is in chunks; sorted."""
        return self._storages.live()

    def chunks(self) -> int:
        """Chunks allocated over all kinds."""
        return sum(arena.chunks for arena in self._all_arenas())

    def pressed(self) -> bool:
        """Whether there are more chunks than leases can be held, as it is since the last iteration:
        the share of a pool may change."""
        return self.chunks() > self.ledger.budget

    def overflows(self) -> bool:
        """Whether there are more chunks than memory has room for. On a device, whether there are
        more than its leases: from there, chunks go to where the daemon can step them."""
        if self.client.properties.device_slots:
            return self.pressed()
        return self.chunks() > slots_of(self.ledger.budget)

    def adopt(self, tensor: torch.Tensor, kind: Kind, row: int = 0) -> bool:
        """Moves the tensor's bytes into a chunk if it can be; whether they are in one now."""
        if not self._adoptable(tensor):
            return self.manages(tensor)
        with torch.no_grad():
            twin = self._arena(kind, row).like_storage_of(tensor)
            self._note_pressure()
            self.copy_bytes(tensor, twin)
            tensor.data = twin
        self._left_behind += twin.untyped_storage().nbytes()
        if self.device.type == "cuda" and self._left_behind >= _CACHED_BYTES:
            # Torch keeps what the tensors left, while the daemon may need it for the pool.
            self._left_behind = 0
            torch.cuda.empty_cache()
        return True

    def adopt_together(self, tensors: Sequence[torch.Tensor], kind: Kind) -> list[torch.Tensor]:
        """Moves a storage, all of which is the first tensor's, into a chunk if it can be and these
        are all that is over it. The same views of it there; none: it stays where it is."""
        whole = tensors[0]
        if not self._adoptable(whole, users=len(tensors)):
            return []
        with torch.no_grad():
            twin = self._arena(kind).like_storage_of(whole)
            self._note_pressure()
            self.copy_bytes(whole, twin)
            storage = twin.untyped_storage()
            return [
                torch.empty(0, dtype=t.dtype, device=self.device).set_(
                    storage, t.storage_offset(), t.size(), t.stride()
                )
                for t in tensors
            ]

    def adopt_gradient(self, parameter: torch.Tensor) -> bool:
        """Moves a parameter's gradient into a chunk; whether it is in one now."""
        self._arena_of_gradients()
        gradient = parameter.grad
        return gradient is not None and self.adopt(gradient, Kind.GRADIENT)

    def adopt_part_of_gradient(self, parameter: torch.Tensor) -> None:
        """Copies this process's part of the gradient of a sharded parameter into a chunk: it lies
        with others' in a buffer, which goes when the last of them has left it. REQUIRES: no one has
        a view of it yet."""
        gradient = parameter.grad
        if gradient is None or not self._movable(part := local_part(gradient)):
            return
        arena = self._arena_of_gradients()
        with torch.no_grad():
            twin = arena.empty(part.size(), part.stride(), part.dtype)
            self._note_pressure()
            with self._leased(Places(self.span_places(twin)), True):
                twin.copy_(part)
        gradient._local_tensor = twin

    def adopt_state_of(self, parameter: Any, state: Any) -> None:
        """Moves what an optimizer keeps for one parameter, at any depth, into chunks. Of a small
        one nothing: it is stepped in this process, which must leave chunks as the daemon made them.
        """
        if isinstance(parameter, torch.Tensor) and parameter.nbytes < SMALLEST_BYTES:
            return
        row = 0
        for tensor in _tensors_in(state):
            row += self.manages(tensor) or self.adopt(tensor, Kind.OPTIMIZER_STATE, row)

    def managed_in(self, state: Any) -> list[torch.Tensor]:
        """The tensors of an optimizer's state, at any depth, that are in chunks."""
        return [tensor for tensor in _tensors_in(state) if self.manages(tensor)]

    def expect_states_of(self, parameters: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to keep states for these, beside those that there are."""
        self._coming_bytes = sum(
            aligned(local_part(p).untyped_storage().nbytes())
            for p in parameters
            if p.requires_grad and self.manages(local_part(p))
        )
        for (kind, _), arena in self._arenas.items():
            if kind is Kind.OPTIMIZER_STATE:
                arena.expected_bytes = arena.live_bytes + self._coming_bytes

    def new_state(self, like: torch.Tensor, row: int) -> torch.Tensor:
        """A tensor for a parameter's state number `row`, with the layout of `like` (which may be on
        meta)."""
        arena = self._arena(Kind.OPTIMIZER_STATE, row)
        twin = arena.empty(like.size(), like.stride(), like.dtype)
        self._note_pressure()
        return twin

    def take_over(
        self, kind: Kind, row: int, places: Iterable[int], spans: Iterable[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """As Arena.take_over, for chunks of parameters or of states number `row`."""
        taken = self._arena(kind, row).take_over(places, spans)
        self._note_pressure()
        return taken

    def move_to(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Points a managed tensor to a storage that takes the place of its own; whether that could
        be: not where others are over its bytes, or over more than it."""
        own = tensor.untyped_storage()
        if (
            not self.manages(tensor)
            or own.nbytes() != storage.nbytes()
            or tensor.storage_offset() != 0
            or _storage_users(own) > _USERS_OF_ONE_TENSOR
        ):
            return False
        layout = torch.empty(0, dtype=tensor.dtype, device=self.device)
        tensor.data = layout.set_(storage, 0, tensor.size(), tensor.stride())
        return True

    def restore(self, tensor: torch.Tensor) -> None:
        """Moves a managed tensor's bytes back to ordinary memory."""
        with torch.no_grad():
            size_bytes = tensor.untyped_storage().nbytes()
            twin = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
            self.copy_bytes(tensor, twin)
            layout = torch.empty(0, dtype=tensor.dtype, device=self.device)
            tensor.data = layout.set_(
                twin.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
            )

    def restore_state(self, state: Any) -> None:
        """Moves what is managed of an optimizer's state back to ordinary memory."""
        for tensor in _tensors_in(state):
            if self.manages(tensor):
                self.restore(tensor)

    def trim_all(self) -> None:
        """Gives all chunks in which nothing lives back to the pools."""
        for arena in self._all_arenas():
            arena.trim()
        self._note_pressure()

    def trim(self) -> None:
        """Gives chunks in which nothing lives back to the pools, when memory is short."""
        if self.pressed():
            for arena in self._all_arenas():
                arena.trim()
        self._note_pressure()

    def free_dead(self) -> None:
        """Ends the chunks of gradients that the script has let go of, when memory is short: what
        is dead must not be written anywhere to make room."""
        arena = self._arena(Kind.GRADIENT)
        if arena.has_returned and self.pressed():
            arena.renew()
            self._note_pressure()

    def copy_bytes(self, source: torch.Tensor, twin: torch.Tensor) -> None:
        """Copies a whole storage, of which one is in chunks, piece by piece.

        REQUIRES: the storage of `twin` is as large.
        """
        writing = self.manages(twin)
        places = self.span_places(twin if writing else source)
        if len(places) == 1 and _is_whole(source) and lie_alike(source, [twin]):
            with self._leased(Places(places), writing):
                twin.copy_(source)
            return
        sources, twins = _bytes_of(source), _bytes_of(twin)
        managed = twins if writing else sources
        start = 0
        while start < managed.numel():
            first = managed.data_ptr() + start
            next_chunk = self.chunk_bytes - (first - self.base) % self.chunk_bytes
            end = min(managed.numel(), start + next_chunk)
            with self._leased(Places(self.places_of(first, end - start)), writing):
                twins[start:end].copy_(sources[start:end])
            start = end

    def _leased(self, places: Places, writing: bool) -> contextlib.AbstractContextManager[None]:
        if self.ledger.netted:
            return contextlib.nullcontext()
        return self.ledger.using(*((_NO_PLACES, places) if writing else (places, _NO_PLACES)))

    def _arena(self, kind: Kind, row: int = 0) -> Arena:
        row = min(row, MOST_STATES - 1)
        if (kind, row) not in self._arenas:
            expected_bytes = self._coming_bytes if kind is Kind.OPTIMIZER_STATE else 0
            self._arenas[kind, row] = Arena(self._storages, kind, expected_bytes)
        return self._arenas[kind, row]

    def _arena_of_gradients(self) -> Arena:
        arena = self._arena(Kind.GRADIENT)
        if arena.has_returned and self.pressed():
            # The last step's gradients are gone. To write into their chunks would first read what
            # nobody wants from SSD; new chunks hold nothing.
            arena.renew()
        return arena

    def _all_arenas(self) -> list[Arena]:
        return list(self._arenas.values())

    def _note_pressure(self) -> None:
        self.ledger.active = self.ledger.strict or self.pressed()

    def _movable(self, tensor: torch.Tensor) -> bool:
        """Whether its elements may be in a chunk, and are in none."""
        if type(tensor) not in _PLAIN_TYPES or tensor.device != self.device:
            return False
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_inference():
            return False
        small = tensor.numel() * tensor.itemsize < SMALLEST_BYTES
        return not small and not self.manages(tensor) and tensor.grad_fn is None

    def _adoptable(self, tensor: torch.Tensor, users: int = 1) -> bool:
        """Whether it can leave the storage that it and so many `users` in all are over."""
        if not self._movable(tensor):
            return False
        storage = tensor.untyped_storage()
        return (
            storage.nbytes() == tensor.numel() * tensor.itemsize
            and tensor.storage_offset() == 0
            and _storage_users(storage) < _USERS_OF_ONE_TENSOR + users
            and not (tensor.is_cpu and storage.is_shared())
            and not (tensor.is_conj() or tensor.is_neg())
        )


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are all of its storage."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def _tensors_in(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield local_part(state)
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors_in(value)
