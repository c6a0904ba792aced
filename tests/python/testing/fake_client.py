"""A fake client without a daemon: one memory mapping, with checks of places, uses and budgets."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import Counter, deque
from typing import Any

import torch
from fake_steps import FakeSteps
from memtide._capi.client import (
    CUDA_SETTINGS,
    Access,
    Home,
    Kind,
    Limits,
    Phase,
    Places,
    Properties,
    Stats,
)
from memtide._capi.lost_chunks import LostChunks, no_names
from memtide.errors import Aborted, FailedPrecondition, NotFound, ResourceExhausted
from torch import nn
from torch.utils.dlpack import to_dlpack

CHUNK_BYTES = 4096
_NEW = 0xA5
_FREED = 0xFF  # Four of these are a NaN, in every floating-point type.


class FakeClient(FakeSteps):
    """Has the methods of memtide._capi.client.Client. Freed and discarded chunks are filled
    with NaN."""

    def __init__(
        self,
        *,
        places: int = 4096,
        lease_budget: int = 8,
        kernel_faults: bool = True,
        handles_faults: bool = True,
    ) -> None:
        super().__init__()
        self._memory = mmap.mmap(-1, places * CHUNK_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.properties = Properties(
            places=places,
            base=base,
            chunk_bytes=CHUNK_BYTES,
            device_slots=0 if handles_faults else lease_budget + 1,
            host_slots=lease_budget,
            ssd_slots=places,
            max_chunks=places,
            lease_budget=lease_budget,
            kernel_faults=kernel_faults and handles_faults,
            handles_faults=handles_faults,
        )
        self.lost = LostChunks(lambda place: place, base, CHUNK_BYTES, no_names)
        self.ranks = 1
        self.limits = Limits(
            chunks_per_call=4096,
            step_manifest_bytes=1 << 19,
            chunks_per_node=1 << 20,
            max_wait_s=600,
            min_slots=4,
        )
        self.kinds: dict[int, Kind] = {}
        self.most_host_homes = places
        self.host_homes: set[int] = set()
        self.protections = 0
        self.discarded: list[tuple[int, ...]] = []  # The places of each call.
        self.duplicated: list[tuple[int, ...]] = []  # As before.
        self.uses: Counter[int] = Counter()
        self.acquired: list[tuple[tuple[int, ...], Access]] = []
        # The phase and name of each reported moment; None ends an iteration.
        self.reported: list[tuple[Phase, str] | None] = []
        self.own_bytes: list[tuple[int, int]] = []
        self.lease_budget = lease_budget
        self.slots = lease_budget + max(1, lease_budget // 3)
        self.visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.cuda_settings = {name: os.environ.get(name) for name in CUDA_SETTINGS}
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def has_other_ranks(self) -> bool:
        return self.ranks > 1

    def allocate(self, kind: Kind, count: int, home: Home = Home.LOWEST) -> int:
        if home is Home.HOST and len(self.host_homes) + count > self.most_host_homes:
            raise ResourceExhausted("no more homes in host memory")
        if len(self.kinds) + count > self.properties.places:
            raise ResourceExhausted(f"{count} chunks more than there are")
        first = next(
            start
            for start in range(self.properties.places)
            if not any(place in self.kinds for place in range(start, start + count))
        )
        self.kinds.update(dict.fromkeys(range(first, first + count), kind))
        self._fill(first, count, _NEW)
        if home is Home.HOST:
            self.host_homes.update(range(first, first + count))
        return first

    def duplicate(self, places: Places, copies: int) -> int:
        self._check(places.numbers)
        if any(self.uses[place] for place in places.numbers):
            raise Aborted("in use")
        first = self.allocate(Kind.OTHER, places.count * copies)
        for number, place in enumerate(places.numbers * copies):
            self.kinds[first + number] = self.kinds[place]
            to, start = ((first + number) * CHUNK_BYTES, place * CHUNK_BYTES)
            self._memory[to : to + CHUNK_BYTES] = self._memory[start : start + CHUNK_BYTES]
        self.duplicated.append(places.numbers)
        return first

    def discard(self, places: Places) -> None:
        self._check(places.numbers)
        if any(self.uses[place] for place in places.numbers):
            raise FailedPrecondition("in use")
        self.discarded.append(places.numbers)
        for place in places.numbers:
            self._fill(place, 1, _FREED)

    def free(self, first_place: int, count: int) -> None:
        places = range(first_place, first_place + count)
        self._check(places)
        if any(self.uses[place] for place in places):
            raise FailedPrecondition("in use")
        for place in places:
            del self.kinds[place]
            self.host_homes.discard(place)
        self._fill(first_place, count, _FREED)

    def acquire(self, places: Places, access: Access, timeout_ms: int = -1) -> None:
        self._check(places.numbers)
        in_use = {place for place, uses in list(self.uses.items()) if uses}
        if len(in_use | set(places.numbers)) > self.lease_budget:
            raise ResourceExhausted("more chunks than can be in use at once")
        self.uses.update(places.numbers)
        self.acquired.append((places.numbers, access))

    def flush(self) -> None:
        """Released leases are not kept here."""

    def release(self, places: Places) -> None:
        if any(not self.uses[place] for place in places.numbers):
            raise FailedPrecondition("not in use")
        with self.use_ended:
            self.uses.subtract(places.numbers)
            self.use_ended.notify_all()

    def moment(self, phase: Phase, name: str, own_device_bytes: int, own_host_bytes: int) -> None:
        self.reported.append((phase, name))
        self.own_bytes.append((own_device_bytes, own_host_bytes))

    def end_iteration(self) -> None:
        self.reported.append(None)

    def protect(self) -> None:
        self.protections += 1

    def resize(self, device_share_bytes: int, timeout_ms: int = -1) -> None:
        self.slots = device_share_bytes // CHUNK_BYTES
        self.lease_budget = self.slots - 1

    def wrap(self, address: int, size_bytes: int) -> Any:
        buffer = (ctypes.c_char * size_bytes).from_address(address)
        end_of_life = weakref.finalize(buffer, self._returned.append, (address, size_bytes))
        end_of_life.atexit = False
        return to_dlpack(torch.frombuffer(buffer, dtype=torch.uint8))

    def take_returned(self) -> list[tuple[int, int]]:
        return [self._returned.popleft() for _ in range(len(self._returned))]

    def stats(self) -> Stats:
        in_use = sum(map(bool, self.uses.values()))
        return Stats(
            len(self.kinds),
            0,
            in_use,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            self.lease_budget,
            self.slots,
            0,
            0,
            0,
            0,
            0,
            0,
        )

    def in_use(self) -> set[int]:
        return {place for place, uses in self.uses.items() if uses}

    def _check(self, places: range | tuple[int, ...]) -> None:
        if any(place not in self.kinds for place in places):
            raise NotFound("no chunk there")

    def _fill(self, first: int, count: int, value: int) -> None:
        start = first * CHUNK_BYTES
        self._memory[start : start + count * CHUNK_BYTES] = bytes([value]) * count * CHUNK_BYTES


def one_chunk_each(count: int) -> list[nn.Parameter]:
    """Managed parameters that fill one chunk each."""
    holder = nn.Module()
    for index in range(count):
        filled = nn.Parameter(torch.full((CHUNK_BYTES // 4,), float(index)), requires_grad=False)
        holder.register_parameter(f"p{index}", filled)
    return list(holder.parameters())
