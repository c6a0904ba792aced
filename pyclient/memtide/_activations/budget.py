"""The budget in the run: how many bytes of activations the process may keep at this moment.

A limit holds for the process and its private daemon together. It is divided into
- what the script and the framework use themselves beside kept activations: the peak of this
  iteration and the last one, as activations that are kept now are still there when it comes again;
- what never changes: the daemon without its pools, a GPU's contexts;
- the pool, as large as it is now, or as it may become again;
- slack for what rises higher than it did in these iterations;
- activations: the rest.

All of it is measured: host memory by the kernel, a GPU's by torch's allocator. An emulated device
has no allocator. Activations, which a GPU would hold, count there beside its slots.

Where no limit is set, that of host memory is what the script has and what is still free, at each
moment. Then nothing is managed before it comes near: what is saved from there on may leave.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from memtide._activations.gpu_memory import GpuMemory
from memtide._activations.limit import Limit, Reading
from memtide._activations.profile import ActivationProfile
from memtide._capi.client import Client
from memtide._daemon.connect import Connection
from memtide._daemon.free_memory import FreeMemory
from memtide._daemon.memory_budget import MemoryBudget, cgroup_leaves_bytes, least_host_bytes
from memtide._telemetry import process_memory
from memtide._telemetry.observer import Observer, Passing
from memtide._util import heap
from memtide._util.sizes import format_size
from memtide.errors import ResourceExhausted

# The result of `allowance_bytes` where nothing limits it.
UNLIMITED_BYTES = 2**62
# A reading is this old at most, where little is left, and where much is; as long as a busy machine
# takes to fill a part of what is left.
_READING_VALID_S, _MOST_READING_VALID_S = 0.005, 0.05
_FILLED_PER_S = {"host": 16 * 2**30, "GPU": 128 * 2**30}
_DAEMON_READING_VALID_S = 0.05
# Reading a cgroup takes a millisecond.
_CGROUP_READING_VALID_S = 0.25
# Beyond a cgroup's budget there is a 16th of its limit. Activations for which chunks have no room
# may use this part of the budget of it, and those that are in use at once the larger one.
_OVER, _OVER_AT_ONCE = 1 / 32, 7 / 128
_SMALL_RISE_BYTES = 4 * 2**20
# And where no limit is set, as then most scripts come nowhere near.
_FREE_VALID_S = 1.0
# There, activations are managed once the script has this part of what there is for it.
_NEAR = 2
# From this part of the limit on, in percent, the allocator returns freed memory. Until then nothing
# is scarce, and a page that is kept is one page fault less.
_SCARCE_PERCENT = 60
_TRIM_EVERY_S = 0.25
# The balloon leaves a job this part of its host slots.
_BALLOON_LEAVES = 4


class Keeper(Protocol):
    """Keeps activations."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of them in the script's own memory now."""

    @property
    def has_no_room(self) -> bool:
        """Whether one was to leave in this iteration, and chunks had no room for it since."""

    def open_here(self) -> bool:
        """Begins in this thread, unless the script has hooks of its own now; returns whether."""

    def as_json(self) -> dict[str, Any]:
        """The moves, blocks and plans of the run."""


class Budget:
    """The limits of this process and its daemon. Safe to use from any thread.

    Until `watch` is called, no activations are kept.
    """

    def __init__(
        self, limits: MemoryBudget, client: Client, daemon_pid: int | None, socket_dir: Path
    ) -> None:
        """`daemon_pid`: the private daemon's, which counts with the process; None: it does not.
        `socket_dir`: the daemon's."""
        self.limits = limits
        self.socket_dir = socket_dir
        self._activations: Keeper | None = None
        self._client = client
        self._daemon_pid = daemon_pid
        properties = client.properties
        self._is_gpu = not properties.handles_faults
        self._kind = "GPU" if self._is_gpu else "host"  # The memory that has activations.
        self._is_emulated = properties.device_slots > 0 and not self._is_gpu
        chunk_bytes = properties.chunk_bytes
        self._host: Limit | None = None
        self._device: Limit | None = None
        self._free: FreeMemory | None = None  # Host memory, where that is the limit.
        self._following: Limit | None = None  # The limit that follows what is free.
        self._was_short: Callable[[], bool] = lambda: False
        self._is_near = self._has_opened = False
        device_pool_bytes = properties.device_slots * chunk_bytes
        if limits.host_bytes is not None:
            pool_bytes = properties.host_slots * chunk_bytes
            self._host = Limit(limits.host_bytes, pool_bytes)
        elif limits.sharing_what_is_free and not self._is_gpu:
            self._free = FreeMemory(socket_dir, limits.sharing_what_is_free)
            self._host = self._following = Limit(UNLIMITED_BYTES, 0)
        if limits.device_bytes is not None and properties.device_slots:
            self._device = Limit(limits.device_bytes, device_pool_bytes)
        elif limits.sharing_what_is_free and self._is_gpu:
            self._device = self._following = Limit(UNLIMITED_BYTES, device_pool_bytes)
            self._device.allowance_bytes = UNLIMITED_BYTES  # Until the script uses the GPU.
        # The daemon's balloon takes no chunks without a home on SSD, and knows no emulated device's
        # activations.
        self._has_balloon = properties.ssd_slots > 0 and not self._is_emulated
        least = _BALLOON_LEAVES if self._has_balloon else 1
        self._least_host_pool_bytes = properties.host_slots * chunk_bytes // least
        self._gpu = GpuMemory(client, limits.device_bytes)
        self._usage = process_memory.UsageReader()
        self._daemon = process_memory.Resident()
        self._most_host_bytes = 0  # Since `take_most_host_bytes`.
        # A lower bound of the script's own bytes, at its peak in this iteration.
        self._surely_own_bytes = self._kept_before_bytes = 0
        self._daemon_valid_until_s = self._valid_until_s = self._next_trim_s = float("-inf")
        self._cgroup_valid_until_s = float("-inf")
        self._returns_blocks = False
        self._lock = threading.Lock()

    def watch(self, activations: Keeper) -> None:
        """Counts what `activations` keeps in the script's own memory from now on."""
        self._activations = activations

    def watch_device(self, was_short: Callable[[], bool]) -> None:
        """`was_short`: whether the script has run out of a GPU's memory."""
        self._was_short = was_short

    def allowance_bytes(self) -> int:
        """How many bytes of activations the process may keep now. ResourceExhausted: what the
        script itself uses leaves no room for the least that memtide needs."""
        self.sample()
        limit = self._of_activations()
        return UNLIMITED_BYTES if limit is None else limit.allowance_bytes

    def divide(self, profile: ActivationProfile) -> ActivationProfile:
        """The profile, with what is left for chunks and kept activations together. A plan takes the
        slots of chunks as they are: a GPU's share follows its allocator, the host's pool the
        balloon, and an emulated device cannot be divided again."""
        limit, client = self._of_activations(), self._client
        return replace(
            profile,
            budget_bytes=UNLIMITED_BYTES if limit is None else limit.left_bytes,
            least_slots=client.limits.min_slots,
            fixed_slots=client.stats().slots,
        )

    def _of_activations(self) -> Limit | None:
        # Activations are where the script's tensors are: on the device, if there is one.
        on_device = self._is_gpu or self._is_emulated
        return self._device if on_device else self._host

    def sample(self) -> None:
        """Reads what is used now, unless a reading is still valid. ResourceExhausted: as above."""
        if not self._limits():
            return
        if not self._lock.acquire(blocking=False):
            return  # Another thread reads.
        try:
            now_s = time.monotonic()
            if now_s < self._valid_until_s:
                return
            kept_bytes = self._activations.kept_bytes if self._activations is not None else 0
            if self._host is not None:
                self._sample_host(self._host, kept_bytes, now_s)
            if self._device is not None:
                self._sample_device(self._device, kept_bytes)
            unused_bytes = min(each.bytes - each.used_bytes for each in self._limits())
            valid_s = max(_READING_VALID_S, unused_bytes / _FILLED_PER_S[self._kind])
            most_s = _MOST_READING_VALID_S if self._is_set else _FREE_VALID_S
            if self._device is not None and self._device.bytes == UNLIMITED_BYTES:
                most_s = _READING_VALID_S  # The script has yet to use the GPU.
            self._valid_until_s = now_s + min(valid_s, most_s)
        finally:
            self._lock.release()

    def open_if_near(self) -> None:
        """Has this thread keep a limit that is not set, but free memory, once half of it is used,
        or a GPU was short. Called before a forward pass of a module, and after a step."""
        limit = self._following
        if self._activations is None or limit is None:
            return
        if not self._is_near:
            is_near = limit.used_bytes > limit.bytes // _NEAR
            self._is_near = is_near or self._was_short()
        if self._is_near and self._activations.open_here() and not self._has_opened:
            self._has_opened = True
            self.sample()
            print(
                f"memtide: the script has {format_size(limit.used_bytes)} of the "
                f"{format_size(limit.bytes)} of {self._kind} memory that are there for it; from "
                "here on, what it keeps for backward leaves for chunks where memory is short",
                file=sys.stderr,
            )

    def take_most_host_bytes(self) -> int:
        """The process's anonymous memory at its most since the last call."""
        self.sample()
        most_bytes, self._most_host_bytes = self._most_host_bytes, 0
        return most_bytes or process_memory.host_bytes()

    def end_iteration(self) -> None:
        """An optimizer has stepped. ResourceExhausted: as above."""
        self.sample()
        if self._host is not None:
            self._check_least(self._host, self._surely_own_bytes, self._daemon.anonymous_bytes)
            self._surely_own_bytes = 0
        self.open_if_near()
        for limit in self._limits():
            limit.end_iteration()

    def as_json(self) -> dict[str, Any] | None:
        """The limits and the most that was used of each, as far as readings show; None: there is no
        limit."""
        if not self._is_set and not self._has_opened:
            return None
        return {
            "host_source": self.limits.host_source if self._free is None else "what is free",
            **_limit_as_json("host", self._host, self.limits.host_bytes),
            **_limit_as_json("device", self._device, self.limits.device_bytes),
            "activations": self._activations.as_json() if self._activations is not None else {},
        }

    @property
    def _is_set(self) -> bool:
        """Whether there is a limit that was set."""
        return any(limit is not self._following for limit in self._limits())

    def _limits(self) -> list[Limit]:
        return [limit for limit in (self._host, self._device) if limit is not None]

    def _sample_host(self, limit: Limit, kept_bytes: int, now_s: float) -> None:
        reading = self._read_host(kept_bytes, now_s)
        used_bytes = reading.used_bytes
        if used_bytes * 100 > limit.bytes * _SCARCE_PERCENT and self._return_memory(limit, now_s):
            rise_bytes = reading.most_bytes - reading.own_bytes - reading.kept_bytes
            reading = self._read_host(kept_bytes, now_s)
            most_bytes = reading.own_bytes + reading.kept_bytes + max(0, rise_bytes)
            reading = replace(reading, most_bytes=most_bytes)
        if self._free is not None:
            # Others take and give back, and chunks come: the limit follows.
            limit.bytes = reading.used_bytes + self._free.left_bytes()
        elif self.limits.is_of_cgroup and now_s >= self._cgroup_valid_until_s:
            self._cgroup_valid_until_s = now_s + _CGROUP_READING_VALID_S
            self._follow_cgroup(limit, reading.used_bytes)
        limit.note(reading)
        self._check_least(limit, reading.own_bytes, reading.fixed_bytes)
        self._check_room(limit, reading)

    def _follow_cgroup(self, limit: Limit, used_bytes: int) -> None:
        """Its limit may be lowered, and others there may take more."""
        begun_bytes = self.limits.host_bytes
        assert begun_bytes is not None
        left_bytes = cgroup_leaves_bytes(used_bytes)
        limit.bytes = begun_bytes if left_bytes is None else min(begun_bytes, left_bytes)

    def _check_least(self, limit: Limit, own_bytes: int, fixed_bytes: int) -> None:
        if self._free is not None:
            return  # It is what there is.
        beside_bytes = own_bytes + fixed_bytes
        least_bytes = beside_bytes + self._least_host_pool_bytes
        if least_bytes <= limit.bytes:
            return
        if not self._has_balloon:  # The pool of a larger limit is larger.
            least_bytes = max(least_bytes, least_host_bytes(beside_bytes))
        raise ResourceExhausted(
            f"the script's own memory is {format_size(own_bytes)} beside what memtide "
            f"manages, and {self.limits.host_source} is {format_size(limit.bytes)}: with "
            f"{format_size(self._least_host_pool_bytes)} for the smallest host pool and "
            f"{format_size(fixed_bytes)} for the daemon, the least is "
            f"{format_size(least_bytes)}. Allow more with --host-memory, or let the script hold "
            "less: a smaller batch, or less data in memory"
        )

    def _check_room(self, limit: Limit, reading: Reading) -> None:
        """Beyond a cgroup's limit the kernel kills."""
        activations, over = self._activations, reading.used_bytes / max(1, limit.bytes) - 1
        if activations is None or not self.limits.is_of_cgroup or over <= _OVER:
            return
        leaving = f"the {format_size(reading.kept_bytes)} of activations that are to leave"
        if activations.has_no_room:
            why = f"chunks have no room for {leaving}. Give them more with --ssd-pool, or with "
            why += "--ssd-dir on a larger drive, or save less: a smaller batch"
        elif over > _OVER_AT_ONCE and reading.pool_bytes <= self._least_host_pool_bytes:
            why = f"the host pool is at its smallest, and {leaving} are in use. Raise the limit, "
            why += "or use less at once: a smaller batch, or shorter sequences"
        else:
            return
        raise ResourceExhausted(
            f"the script and memtide use {format_size(reading.used_bytes)}, and "
            f"{self.limits.host_source} leaves them {format_size(limit.bytes)}: {why}"
        )

    def _read_host(self, kept_bytes: int, now_s: float) -> Reading:
        if self._free is not None and not self._has_opened:
            # A script that asks for its own peak is not to notice: reading it forgets it.
            own_bytes = process_memory.host_bytes()
            self._most_host_bytes = max(self._most_host_bytes, own_bytes)
            return Reading(own_bytes, 0, 0, 0)
        usage, before = self._usage.read(), self._daemon
        rise_bytes = usage.most_bytes - usage.anonymous_bytes
        if self._free is not None:
            # The daemon's memory is not free, and counts nowhere else.
            kept_bytes = min(kept_bytes, usage.anonymous_bytes)
            self._most_host_bytes = max(self._most_host_bytes, usage.most_bytes)
            own_bytes = usage.anonymous_bytes - kept_bytes
            return Reading(own_bytes, 0, 0, kept_bytes, usage.most_bytes)
        if now_s >= self._daemon_valid_until_s or rise_bytes > _SMALL_RISE_BYTES:
            # The pool shrinks for what rises.
            assert self._daemon_pid is not None
            self._daemon = process_memory.resident_of(self._daemon_pid)
            self._daemon_valid_until_s = now_s + _DAEMON_READING_VALID_S
        most_bytes, pool_bytes = usage.most_bytes, self._daemon.shared_bytes
        self._most_host_bytes = max(self._most_host_bytes, most_bytes)
        if self._is_gpu:
            kept_bytes = 0  # They are in the GPU's memory.
        own_bytes = max(0, usage.anonymous_bytes - kept_bytes)
        if self._is_emulated:
            # The device's slots and what it keeps beside them are host memory only here.
            pool_bytes = max(0, pool_bytes - self._gpu.share_bytes())
            return Reading(own_bytes, self._daemon.anonymous_bytes, pool_bytes, 0)
        # As much of the pool may have been resident in this process as is in the daemon.
        not_own_bytes = max(before.shared_bytes, pool_bytes) + max(
            self._kept_before_bytes, kept_bytes
        )
        surely_own_bytes = usage.most_resident_bytes - not_own_bytes
        self._surely_own_bytes = max(self._surely_own_bytes, surely_own_bytes)
        self._kept_before_bytes = kept_bytes
        return Reading(own_bytes, self._daemon.anonymous_bytes, pool_bytes, kept_bytes, most_bytes)

    def _return_memory(self, limit: Limit, now_s: float) -> bool:
        """Returns freed memory to the system, now and then; whether there was any."""
        if now_s < self._next_trim_s:
            return False
        self._next_trim_s = now_s + _TRIM_EVERY_S
        if self._returns_blocks:
            return heap.trim()
        self._returns_blocks = True
        limit.forget_peaks()  # They contain what the allocator kept.
        return heap.return_freed_blocks()

    def _sample_device(self, limit: Limit, kept_bytes: int) -> None:
        gpu = self._gpu
        own_bytes = max(0, gpu.own_bytes() - kept_bytes) if self._is_gpu else 0
        if limit is not self._following:
            limit.note(Reading(own_bytes, gpu.contexts_bytes, gpu.share_bytes(), kept_bytes))
            return
        if not gpu.is_used:
            return
        reading = Reading(own_bytes, 0, gpu.made_bytes(), kept_bytes)
        # Others take and give back: the limit follows.
        left_bytes = gpu.left_bytes(self.limits.sharing_what_is_free)
        limit.bytes = reading.used_bytes + left_bytes
        limit.note(reading)

    @property
    def limits_host(self) -> bool:
        """Whether host memory has a limit."""
        return self._host is not None

    @property
    def allocator_limit(self) -> GpuMemory | None:
        """The limit of torch's allocator on a device; None: there is none."""
        return None if self.limits.device_bytes is None else self._gpu


def budget_of(connection: Connection) -> Budget | None:
    """The budget of a connection; None: nothing limits it. Only a private daemon's memory counts
    with the process's."""
    limits, daemon = connection.budget, connection.daemon
    if not limits.named() and not limits.sharing_what_is_free:
        return None
    pid = None if daemon is None else daemon.process.pid
    return Budget(limits, connection.client, pid, connection.socket_dir)


class Sampling(Passing):
    """Reads a budget's memory at each moment and at the end of each iteration, and passes all
    events on."""

    def __init__(self, budget: Budget, next_observer: Observer) -> None:
        super().__init__(next_observer)
        self._budget = budget

    def moment(self, phase: str, name: str) -> None:
        self._budget.sample()
        if phase == "forward":
            self._budget.open_if_near()
        super().moment(phase, name)

    def end_iteration(self) -> None:
        self._budget.end_iteration()
        super().end_iteration()


def _limit_as_json(name: str, limit: Limit | None, begun_bytes: int | None) -> dict[str, int]:
    if limit is None:
        return {}
    return {
        f"{name}_bytes": limit.bytes if begun_bytes is None else begun_bytes,
        f"{name}_most_used_bytes": limit.most_used_bytes,
        f"{name}_most_own_bytes": limit.most_own_bytes,
        f"{name}_allowance_bytes": limit.allowance_bytes,
    }
