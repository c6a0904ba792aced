"""Times AdamW's offloaded step on chunks whose home is the SSD, by turns with two limits.

One client without a torch optimizer steps parameters in sets of chunks (parameter, gradient, two
moments), several sets at a time, by memtide's AdamW, and commits. The limits are the same chunks
with copies instead of arithmetic, and files of the same size, mapped with mmap and stepped in place
by the same function, with as much memory as the pool has.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import daemon_process
import machine
import torch
from figures import Pair
from memtide._capi import library
from memtide._capi.client import Client, Kind
from memtide._optimizer_step.partition import Batch, Geometry, Interval, Part
from memtide._optimizer_step.torch_functional import FORMS, torch_options_of
from memtide._optimizer_step.torch_kernels import TorchKernels
from memtide._optimizer_step.torch_options import TorchOptions
from memtide._optimizer_step.torch_tiles import GRAIN, step_once
from memtide.optim._adamw import adamw

_MIB = 2**20
_CHUNK_BYTES = 8 * _MIB
_ELEMENTS = _CHUNK_BYTES // 4  # Parameters in a set.
_DEPTH = 4  # Calls in progress at a time.
_MOST_CHUNKS = 64  # More than a call has.
_TILE = GRAIN - 64  # The elements that parts compute at a time.
_PER_CALL = 2  # Sets in a call. With bf16 moments, two sets share each chunk of moments.
# The chunks of a set. A step reads all of them and writes all but gradients: in fp32, 16 and 12
# bytes a parameter.
_KINDS = (Kind.GRADIENT, Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.OPTIMIZER_STATE)


@dataclass(frozen=True)
class Options:
    """`sets` is even; a set has 2 M parameters. `host_chunks` is the size of the host pool."""

    memtided: Path
    ssd_parent: Path
    sets: int
    rounds: int
    host_chunks: int = 80


def _adamw_options() -> TorchOptions:
    """The options of a step of memtide's AdamW with fp32 parameters and moments."""
    form = next(form for form in FORMS if form.has_masters and form.name == "adamw")
    lists = {name: [0] for name in ("params", "grads", "exp_avgs", "exp_avg_sqs", "state_steps")}
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    flags = {"maximize": False, "stochastic": False}
    options = torch_options_of(
        form, adamw, {**lists, "masters": [], "first_elements": [0], **numbers, **flags}
    )
    assert options is not None
    return options


def _counts(sets: int, moment_bytes: int) -> tuple[int, ...]:
    """The number of chunks of each of `_KINDS`."""
    moments = -(-sets * moment_bytes // 4)
    return sets, sets, moments, moments


class _States:
    """The sets of one client, and a step over all of them."""

    def __init__(self, client: Client, sets: int, moment_bytes: int) -> None:
        self._client = client
        self._options = replace(
            _adamw_options(), state_format=torch.float32 if moment_bytes == 4 else torch.bfloat16
        )
        self._calls = range(sets // _PER_CALL)
        counts = _counts(sets, moment_bytes)
        self._old = [client.allocate(k, n) for k, n in zip(_KINDS, counts, strict=True)]
        self._new = [client.allocate(k, n) for k, n in zip(_KINDS[1:], counts[1:], strict=True)]
        self._written = counts[1:]
        self._moment_bytes = moment_bytes
        self._geometry = Geometry(client.properties.base, _CHUNK_BYTES)
        self._kernels = TorchKernels(client, self._geometry, has_plain_bits=False)
        self._shadows = {
            old + i: new + i
            for old, new, n in zip(self._old[1:], self._new, self._written, strict=True)
            for i in range(n)
        }
        self._steps = client.committed()[0]
        self._threads = ThreadPoolExecutor(_DEPTH)

    def step(self, call: Callable[[range], None]) -> None:
        """Makes the step of all sets, with several calls at a time, and commits."""
        calls = [range(i * _PER_CALL, (i + 1) * _PER_CALL) for i in self._calls]
        list(self._threads.map(call, calls))
        self._steps += 1
        self._client.commit(
            self._steps,
            list(self._shadows),
            list(self._shadows.values()),
            b"",
            keep_old_content=False,
        )
        self._client.end_iteration()

    def adamw(self, sets: range) -> None:
        options = replace(self._options, step=self._steps + 1)
        batch = self._batch(sets)
        for number in sets:
            (gradient, _), *written = self._intervals(number)
            batch.parts.append(
                Part(options, _ELEMENTS, gradient, tuple(written), number * _ELEMENTS)
            )
        self._kernels.make(batch, self._shadows, _MOST_CHUNKS)

    def copy(self, sets: range) -> None:
        """Reads and writes the same chunks."""
        batch = self._batch(sets)
        for number in sets:
            batch.copies += self._intervals(number)[1:]
        self._kernels.make(batch, self._shadows, _MOST_CHUNKS)

    def _batch(self, sets: range) -> Batch:
        batch = Batch()
        for number in sets:
            gradient, *written = (
                self._geometry.place(start) for start, _ in self._intervals(number)
            )
            batch.reads.add(gradient)
            batch.writes.update(written)
        return batch

    def _intervals(self, number: int) -> list[Interval]:
        """The gradient, the parameter and the moments of a set."""
        widths = (4, 4, self._moment_bytes, self._moment_bytes)
        starts = [
            self._geometry.chunk(first)[0] + number * _ELEMENTS * width
            for first, width in zip(self._old, widths, strict=True)
        ]
        return [
            (start, start + _ELEMENTS * width) for start, width in zip(starts, widths, strict=True)
        ]

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()


@contextmanager
def _states(options: Options, moment_bytes: int = 4, host_chunks: int = 0) -> Iterator[_States]:
    counts = _counts(options.sets, moment_bytes)
    chunks = sum(counts) + sum(counts[1:])  # All but gradients have a shadow chunk.
    flags = [
        "--device=none",
        f"--host-pool={(host_chunks or options.host_chunks) * _CHUNK_BYTES}",
        f"--ssd-pool={chunks * _CHUNK_BYTES}",
    ]
    with daemon_process.running(options.memtided, options.ssd_parent, flags) as daemon:
        client = Client(library.Options(str(daemon.socket_dir), chunk_bytes=_CHUNK_BYTES))
        states = _States(client, options.sets, moment_bytes)
        try:
            # The first two steps write both chunks of each pair, the third is then predicted.
            for _ in range(3):
                states.step(states.adamw)
            yield states
        finally:
            states.close()


class _Mapped:
    """The same states as _States, in mapped files that are stepped in place."""

    def __init__(self, options: Options, directory: Path) -> None:
        self._adamw = _adamw_options()
        self._options = options
        paths = [directory / f"mapped{i}" for i in range(4)]
        self._files = [path.open("wb+") for path in paths]
        for path in paths:  # No file is left behind, even if the process is killed.
            path.unlink()
        size = options.sets * _CHUNK_BYTES
        for file in self._files:
            os.posix_fallocate(file.fileno(), 0, size)
        self._maps = [mmap.mmap(file.fileno(), size) for file in self._files]
        self._tensors = [torch.frombuffer(each, dtype=torch.float32) for each in self._maps]
        self._steps = 0
        self._threads = ThreadPoolExecutor(2)

    def step(self) -> None:
        self._steps += 1
        # The number of sets (four chunks each) in memory at a time: as many as fit in the pool.
        window = max(1, self._options.host_chunks // 4)
        for number in range(self._options.sets + window):
            if number < self._options.sets:
                list(self._threads.map(lambda half, n=number: self._half(n, half), range(2)))
                for each in self._maps[1:]:  # Starts write-back, which Linux does on its own.
                    _sync_range(each, number, wait=False)
            if number >= window:
                self._drop(number - window)

    def _half(self, number: int, half: int) -> None:
        begin = number * _ELEMENTS + half * _ELEMENTS // 2
        end = begin + _ELEMENTS // 2
        options = replace(self._adamw, step=self._steps)
        with torch.no_grad():
            for first in range(begin, end, _TILE):
                tile = slice(first, min(first + _TILE, end))
                gradient, *written = (tensor[tile] for tensor in self._tensors)
                step_once(options, gradient, written, first)

    def _drop(self, number: int) -> None:
        """Writes what is still dirty of a set and frees its memory."""
        for index, (file, each) in enumerate(zip(self._files, self._maps, strict=True)):
            if index > 0:
                _sync_range(each, number, wait=True)
            each.madvise(mmap.MADV_DONTNEED, number * _CHUNK_BYTES, _CHUNK_BYTES)
            os.posix_fadvise(
                file.fileno(), number * _CHUNK_BYTES, _CHUNK_BYTES, os.POSIX_FADV_DONTNEED
            )

    def close(self) -> None:
        self._threads.shutdown()
        self._tensors.clear()
        for file in self._files:
            file.close()


def _sync_range(mapped: mmap.mmap, number: int, *, wait: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + number * _CHUNK_BYTES
    flag = 4 if wait else 1  # MS_SYNC, MS_ASYNC.
    if libc.msync(ctypes.c_void_p(start), ctypes.c_size_t(_CHUNK_BYTES), flag) != 0:
        raise OSError(ctypes.get_errno(), "msync")


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _pairs(rounds: int, limit: Callable[[], None], product: Callable[[], None]) -> list[Pair]:
    pairs = []
    for _ in range(rounds):
        load = machine.Load(machine.our_processes())
        times = _seconds(limit), _seconds(product)
        pairs.append(Pair(*times, load.of_others()))
    return pairs


def measure(options: Options) -> dict[str, list[Pair]]:
    """Measures pairs of seconds per step: the limit and the offloaded step."""
    samples: dict[str, list[Pair]] = {}
    with _states(options) as states:
        adamw = lambda: states.step(states.adamw)  # noqa: E731
        samples["steps.arithmetic"] = _pairs(
            options.rounds, lambda: states.step(states.copy), adamw
        )
        mapped = _Mapped(options, options.ssd_parent)
        try:
            mapped.step()
            samples["steps.mmap"] = _pairs(options.rounds, mapped.step, adamw)
        finally:
            mapped.close()
        with _states(options, moment_bytes=2) as halved:
            samples["steps.bf16_moments"] = _pairs(
                options.rounds, adamw, lambda: halved.step(halved.adamw)
            )
        # Room for half of all chunks. A set has 7: the gradient, the parameter, two moments, and
        # three shadow chunks.
        host = options.host_chunks + options.sets * 7 // 2
        with _states(options, host_chunks=host) as held:
            samples["steps.half_in_host"] = _pairs(
                options.rounds, adamw, lambda: held.step(held.adamw)
            )
    return samples
