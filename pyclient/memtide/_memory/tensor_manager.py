"""The tensors that live in chunks: where they lie, new ones, and whether all their chunks fit.

What of a script's tensors moves into chunks, and how, is adoption.py's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memtide._capi.client import Client, Home, Kind, Places
from memtide._memory.arenas import Arenas
from memtide._memory.leases import LeaseLedger
from memtide._memory.parallel_layout import Position
from memtide._memory.storage_copies import (
    Copy,
    bytes_of,
    copy_without_torch,
    is_whole,
)
from memtide._memory.tensor_layout import have_same_layout
from memtide._util.devices import gpu_module
from memtide._util.step_phase import Step, StepPhase
from memtide.errors import ResourceExhausted

_NO_PLACES = Places(())
_NONE = range(0)
_CACHED_BYTES = 256 * 2**20
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_managers: weakref.WeakSet[TensorManager] = weakref.WeakSet()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor of torch's own class."""
    return type(tensor) in _PLAIN_TYPES and tensor.layout is torch.strided


def address_of(tensor: torch.Tensor) -> int:
    """The address of the first element; 0: it is not a dense tensor of torch's own class."""
    return tensor.data_ptr() if is_plain(tensor) else 0


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a DTensor in this process; of any other tensor, the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether FSDP has given this process a part of a parameter, or of several."""
    return local_part(parameter) is not parameter or hasattr(parameter, "_is_flat_param")


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer state, at any depth; of a DTensor, the shard in this process."""
    if isinstance(state, torch.Tensor):
        yield local_part(state)
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)


def _address_of_subclass(tensor: torch.Tensor) -> int:
    """As address_of, for a script's own class of tensors, which may be over managed memory too."""
    if type(tensor) in _PLAIN_TYPES or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # A wrapper of other tensors has no memory.
        return 0


def manager_of(tensor: torch.Tensor) -> TensorManager | None:
    """The manager in whose chunks a tensor is. None: it is in none of this process."""
    return next((m for m in list(_managers) if m.here and m.manages(tensor)), None)


class TensorManager(StepPhase):
    """The tensors in the arenas of one client."""

    def __init__(
        self,
        client: Client,
        ledger: LeaseLedger,
        before_adoption: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_adoption` is called before a tensor's bytes move into chunks, in which there may
        be others."""
        _managers.add(self)
        properties = client.properties
        self.client = client
        self.ledger = ledger
        self.base = properties.base
        self.end = properties.base + properties.places * properties.chunk_bytes
        self.chunk_bytes = properties.chunk_bytes
        self._arenas = Arenas(client)
        self.device = self._arenas.storages.device
        self._owner = os.getpid()
        self._has_left_outside = False
        self.before_adoption = before_adoption
        self._left_behind = 0  # Bytes of ordinary memory that adopted parameters have left.

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

    def kind_at(self, address: int) -> Kind | None:
        """The kind of the chunk at an address; None: there is none."""
        if not self.in_range(address):
            return None
        return self._arenas.kind_at((address - self.base) // self.chunk_bytes)

    def places_of(self, address: int, size_bytes: int) -> range:
        """The places under `size_bytes` bytes from `address`. REQUIRES: within the range."""
        first = (address - self.base) // self.chunk_bytes
        return range(first, (address + size_bytes - 1 - self.base) // self.chunk_bytes + 1)

    def element_places(self, tensor: torch.Tensor) -> range:
        """The places under the elements of a tensor of any class; none: it is not managed."""
        if type(tensor) not in _PLAIN_TYPES:  # For those this is called for every operation.
            tensor = local_part(tensor)
        address = address_of(tensor) or _address_of_subclass(tensor)
        if not self.in_range(address) or not (elements := tensor.numel()):
            return _NONE
        if not tensor.is_contiguous():
            steps = zip(tensor.size(), tensor.stride(), strict=True)
            elements = sum((n - 1) * step for n, step in steps) + 1
        return self.places_of(address, elements * tensor.itemsize)

    def span_places(self, tensor: torch.Tensor) -> range:
        """The places of a managed tensor's whole storage."""
        storage = tensor.untyped_storage()
        return self.places_of(storage.data_ptr(), storage.nbytes())

    def bytes_at(self, address: int, size_bytes: int) -> torch.Tensor:
        """A tensor of uint8 over bytes of the range, beside any tensor that is there."""
        storage = self._arenas.storages.beside(address, size_bytes)
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def live(self) -> list[tuple[int, int]]:
        """The [start, end) addresses of all spans with a storage, sorted."""
        return self._arenas.storages.live()

    def parameter_places(self) -> set[int]:
        """The places of the chunks of parameters."""
        return set(self._arenas.of(Kind.PARAMETER).places)

    def state_places(self) -> set[int]:
        """The places of the chunks of optimizer states."""
        return self._arenas.state_places()

    def chunks(self) -> int:
        """Chunks allocated over all kinds."""
        return self._arenas.chunks()

    def bytes_by_kind(self) -> dict[Kind, int]:
        """Bytes of the chunks that hold tensors, by kind. The chunks of steps beside them
        (shadow_chunks.py) are not counted."""
        counts = self._arenas.chunks_by_kind()
        return {kind: count * self.chunk_bytes for kind, count in counts.items()}

    def exceeds_lease_budget(self) -> bool:
        """Whether there are more chunks than may be leased at once. The ledger reads that budget
        once an iteration, as the job's share of a pool may change."""
        return self.chunks() > self.ledger.budget

    def overflows(self) -> bool:
        """Whether optimizer steps are left to the daemon, since the chunks do not fit: in host
        memory, more than its slots; on a device, more than its lease budget, because chunks evicted
        from there are already where the daemon steps them (docs/decisions/0013)."""
        chunks = self._arenas.chunks_of_steps()
        device = self.client.properties.device_slots
        return chunks > (self.ledger.budget if device else self.ledger.slots)

    def leave_behind(self, size_bytes: int) -> None:
        """Counts the ordinary memory that a parameter has left. Torch's allocator on a GPU caches
        it, and the pool may need it. What gradients and states leave is not counted: the next ones
        use it again, and to empty the cache in every step costs much more than it gains."""
        self._left_behind += size_bytes
        gpu = gpu_module(self.device.type)
        if gpu is not None and self._left_behind >= _CACHED_BYTES:
            self._left_behind = 0
            gpu.empty_cache()

    def leave_outside(self, tensor: torch.Tensor) -> None:
        """Says of the first tensor that stays where it is, since others may have its memory, that
        such tensors do."""
        if not self._has_left_outside:
            self._has_left_outside = True
            print(
                f"memtide: a tensor of size {list(tensor.size())} stays where it is, as do others "
                "over memory that is not torch's (NumPy's, another library's, a mapped file's): "
                "its owner may use it, too",
                file=sys.stderr,
            )

    def managed_in(self, state: Any) -> list[torch.Tensor]:
        """The tensors of an optimizer state, at any depth, that are in chunks."""
        return [tensor for tensor in tensors_in(state) if self.manages(tensor)]

    def lay_out(self, parameters: Iterable[torch.Tensor]) -> None:
        """Announces that an optimizer steps these parameters."""
        parts = [local_part(p) for p in parameters if p.requires_grad]
        self._arenas.lay_out((address_of(p), p.nbytes) for p in parts if self.manages(p))

    def new_like_storage_of(
        self, tensor: torch.Tensor, kind: Kind, row: int = 0, parameter: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """An uninitialized tensor in chunks with the layout of `tensor`, over a span as large as
        its storage. `parameter`: the one to which a gradient or state belongs. None: a hold has no
        room."""
        position = self._position_of(kind, parameter, tensor.nbytes)
        target = self._arenas.of(kind, row).like_storage_of(tensor, position)
        return target if self._may_use_all() else None

    def new_gradient(self, like: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor | None:
        """An uninitialized tensor in chunks for a parameter's gradient, with the layout of `like`.
        None: a hold has no room."""
        return self._new_like(like, Kind.GRADIENT, 0, parameter)

    def new_state(self, like: torch.Tensor, row: int, parameter: torch.Tensor) -> torch.Tensor:
        """An uninitialized tensor for a parameter's state number `row`, with the layout of `like`
        (which may be on the meta device). It is in ordinary memory where a hold has no room."""
        target = self._new_like(like, Kind.OPTIMIZER_STATE, row, parameter)
        if target is not None:
            return target
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=self.device)

    def _new_like(
        self, like: torch.Tensor, kind: Kind, row: int, parameter: torch.Tensor
    ) -> torch.Tensor | None:
        position = self._position_of(kind, parameter, like.nbytes)
        target = self._arenas.of(kind, row).empty(like.size(), like.stride(), like.dtype, position)
        return target if self._may_use_all() else None

    def _position_of(
        self, kind: Kind, parameter: torch.Tensor | None, size_bytes: int
    ) -> Position | None:
        if parameter is None or not self.manages(part := local_part(parameter)):
            return None
        return self._arenas.position_of(kind, address_of(part), part.nbytes, size_bytes)

    @property
    def activation_home(self) -> Home:
        """The home of activations: host memory, where there is something above it. Else only SSD
        frees the memory that they need."""
        properties = self.client.properties
        above = properties.device_slots and properties.host_slots and properties.ssd_slots
        return Home.HOST if above else Home.LOWEST

    def new_activation(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        home: Home | None = None,
        allow_ssd: bool = False,
    ) -> torch.Tensor:
        """An uninitialized tensor in activation chunks with this home; None: `activation_home`.
        `allow_ssd`: in chunks that may leave for SSD, where host memory has no home for more.
        ResourceExhausted: there is no room."""
        home = self.activation_home if home is None else home
        try:
            target = self._arenas.of_activations(home).empty(size, stride, dtype)
        except ResourceExhausted:
            if home is Home.LOWEST or not allow_ssd:
                raise
            target = self._arenas.of_activations(Home.LOWEST).empty(size, stride, dtype)
        if not self._may_use_all():
            raise ResourceExhausted("a hold has no room for another activation chunk")
        return target

    def discard_dead_activations(self) -> None:
        """Called now and then in backward: frees the memory of chunks whose activations have all
        been used, and keeps the chunks."""
        self._arenas.discard_dead_activations()

    def end_activations(self) -> None:
        """Called once an iteration. The chunks of activations that are dropped are used again."""
        self._arenas.end_iteration()
        self._note_whether_leases_are_needed()

    def take_over(
        self, kind: Kind, row: int, places: Iterable[int], spans: Iterable[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """As Arena.take_over, for chunks of parameters, or of states number `row`."""
        storages = self._arenas.of(kind, row).take_over(places, spans)
        self._note_whether_leases_are_needed()
        return storages

    def take_over_beside(
        self, place: int, places: Iterable[int], spans: Sequence[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """As Arena.take_over_whole, into the arena that has the chunk at `place`."""
        arena = self._arenas.at(place)
        assert arena is not None
        return arena.take_over_whole(places, spans)

    def note_new_chunks(self) -> None:
        """To be called when take_over_beside has added chunks."""
        self._note_whether_leases_are_needed()

    def arena_number(self, place: int) -> int:
        """A number of the arena that has the chunk at a place: parameters, states, then others."""
        return self._arenas.number_at(place)

    def trim_all(self) -> None:
        """Returns all chunks without a live tensor to the pools."""
        self._arenas.close()
        self._note_whether_leases_are_needed()

    def after_step(self, step: Step) -> None:
        """Returns chunks without a live tensor to the pools, if memory is short. After a first step
        it returns all, with the room that was reserved for expected tensors."""
        if step.is_first:
            self.trim_all()
        else:
            self.trim()

    def trim(self) -> None:
        """Returns chunks without a live tensor to the pools, if memory is short."""
        if self.exceeds_lease_budget():
            self._arenas.trim()
        self._note_whether_leases_are_needed()

    @property
    def gradient_bytes(self) -> int:
        """The most bytes of gradients that were in chunks at once."""
        return self._arenas.gradients.peak_bytes

    def free_dead(self) -> None:
        """Frees the chunks of gradients that the script has dropped, if memory is short: else they
        would be written back to make room, for nothing, and a write to them would first read the
        dead content from SSD. New chunks have no content to read."""
        gradients = self._arenas.gradients
        if gradients.has_returned and self.exceeds_lease_budget():
            gradients.renew()
            self._note_whether_leases_are_needed()

    def copy_bytes(
        self, source: torch.Tensor, target: torch.Tensor, *, starts_threads: bool = True
    ) -> None:
        """Copies the whole storage of `source` to that of `target`, chunk by chunk. Between host
        memory and host memory no thread is started for it if `starts_threads` is false.

        REQUIRES: both storages have one size, and one of them is in chunks.
        """
        by_torch = starts_threads or not (source.is_cpu and target.is_cpu)
        copy: Copy = torch.Tensor.copy_ if by_torch else copy_without_torch
        writing = self.manages(target)
        places = self.span_places(target if writing else source)
        if len(places) == 1 and is_whole(source) and have_same_layout(source, [target]):
            with self.leased(Places(places), writing=writing, by_torch=by_torch):
                copy(target, source)
            return
        sources, targets = bytes_of(source), bytes_of(target)
        managed = targets if writing else sources
        start = 0
        while start < managed.numel():
            first = managed.data_ptr() + start
            next_chunk = self.chunk_bytes - (first - self.base) % self.chunk_bytes
            end = min(managed.numel(), start + next_chunk)
            part = Places(self.places_of(first, end - start))
            with self.leased(part, writing=writing, by_torch=by_torch):
                copy(targets[start:end], sources[start:end])
            start = end

    def leased(
        self, places: Places, *, writing: bool, by_torch: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Leases these places for one copy, by torch or past it."""
        # What torch does under lease dispatch is leased there, and under a hold all chunks are.
        dispatched = self.ledger.under_dispatch and torch._C._len_torch_dispatch_stack()
        if (by_torch and dispatched) or self.ledger.holding:
            return contextlib.nullcontext()
        return self.ledger.using(*((_NO_PLACES, places) if writing else (places, _NO_PLACES)))

    def hold_all(self) -> bool:
        """Begins a hold of all chunks. False: they do not all fit. The chunks of gradients that the
        script has dropped are freed before: during a hold there will be no others."""
        self._arenas.gradients.trim()
        held = self.ledger.hold(self._arenas.places())
        self._note_whether_leases_are_needed()
        return held

    def is_all_held(self) -> bool:
        """Whether the hold has all chunks. During a hold none is freed, since all are leased."""
        return self.ledger.held_chunks == self.chunks()

    def end_hold(self) -> None:
        """Ends the hold, if there is one."""
        self.ledger.end_hold()
        self._note_whether_leases_are_needed()

    def _note_whether_leases_are_needed(self) -> None:
        ledger = self.ledger
        ledger.active = (ledger.strict and not ledger.holding) or self.exceeds_lease_budget()

    def _may_use_all(self) -> bool:
        """Called when an arena may have grown. During a hold no operation leases what it uses, so
        the hold has to have the new chunks, too. False: they do not fit. The caller drops the
        tensor that it has there, and what was to be moved stays in ordinary memory."""
        self._note_whether_leases_are_needed()
        if not self.ledger.holding or self.is_all_held():
            return True
        return self.ledger.extend_hold(self._arenas.places())
