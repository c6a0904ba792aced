"""Arenas, and the free lists under them."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Kind
from memtide._memory.alignment import ALIGNMENT_BYTES, GPU_ALIGNMENT_BYTES
from memtide._memory.arena import Arena, Storages
from memtide._memory.arenas import Arenas
from memtide._memory.free_list import FreeList
from memtide._memory.parallel_layout import Position, Run
from memtide.errors import NoRoom
from recording_gpu import RecordingGpu


@pytest.mark.parametrize("seed", range(20))
def test_intervals_agree_with_a_set_of_numbers(seed: int) -> None:
    draw = random.Random(seed)
    intervals, model = FreeList(), set()
    for _ in range(300):
        if draw.random() < 0.5:
            start = draw.randrange(200)
            wanted = range(start, start + draw.randint(1, 12))
            if model.isdisjoint(wanted):
                intervals.add(wanted.start, wanted.stop)
                model.update(wanted)
        elif draw.random() < 0.3:
            start = draw.randrange(200)
            wanted = range(start, start + draw.randint(1, 12))
            assert intervals.take_at(wanted.start, wanted.stop) == model.issuperset(wanted)
            if model.issuperset(wanted):
                model.difference_update(wanted)
        else:
            size = draw.randint(1, 12)
            first = intervals.take(size)
            fits = [n for n in sorted(model) if set(range(n, n + size)) <= model]
            assert first == (fits[0] if fits else None)
            if first is not None:
                model -= set(range(first, first + size))
        listed = list(intervals)
        assert {n for start, end in listed for n in range(start, end)} == model
        assert all(end < start for (_, end), (start, _) in zip(listed, listed[1:], strict=False))


@pytest.mark.parametrize("seed", range(20))
def test_aligned_intervals_agree_with_a_set_of_numbers(seed: int) -> None:
    draw = random.Random(seed)
    intervals, model = FreeList(), set()
    for _ in range(300):
        start, size, alignment = draw.randrange(200), draw.randint(1, 12), draw.choice([1, 4, 8])
        wanted = range(start, start + size)
        if draw.random() < 0.5 and model.isdisjoint(wanted):
            intervals.add(wanted.start, wanted.stop)
            model.update(wanted)
        else:
            first = intervals.take(size, alignment)
            aligned = (n for n in sorted(model) if n % alignment == 0)
            fits = [n for n in aligned if set(range(n, n + size)) <= model]
            assert first == (fits[0] if fits else None)
            if first is not None:
                model -= set(range(first, first + size))
        for start, end in intervals:
            usable = [n for n in range(start, end) if n % alignment == 0]
            assert intervals.ending_at(end, alignment) == (end - usable[0] if usable else 0)


@pytest.mark.parametrize(
    ("handles_faults", "alignment"), [(True, ALIGNMENT_BYTES), (False, GPU_ALIGNMENT_BYTES)]
)
def test_spans_are_aligned_as_torch_aligns_them_on_their_device(
    handles_faults: bool, alignment: int
) -> None:
    assert (ALIGNMENT_BYTES, GPU_ALIGNMENT_BYTES) == (64, 512)
    arena = Arena(Storages(FakeClient(handles_faults=handles_faults)), Kind.OTHER)
    held = [arena.empty([1000 + 24 * n], [1], torch.uint8) for n in range(20)]
    at = [tensor.data_ptr() for tensor in held]
    assert all(address % alignment == 0 for address in at)
    sizes = [-(-tensor.nbytes // alignment) * alignment for tensor in held]
    assert at == [at[0] + sum(sizes[:number]) for number in range(20)], "no other padding"


def test_what_kernels_still_use_is_awaited_before_the_arena_says_that_it_is_full(
    cpu_as_gpu: RecordingGpu,
) -> None:
    arena = Arena(Storages(FakeClient(places=1, handles_faults=False)), Kind.OTHER)
    held = [arena.empty([CHUNK_BYTES], [1], torch.uint8)]
    cpu_as_gpu.while_waiting = held.clear
    assert arena.empty([CHUNK_BYTES], [1], torch.uint8).numel() == CHUNK_BYTES
    assert cpu_as_gpu.calls == ["synchronize"]


def test_an_arena_gives_up_the_chunks_that_it_keeps_for_later_where_another_has_no_room() -> None:
    arenas = Arenas(FakeClient(places=3))
    parameters, states = arenas.of(Kind.PARAMETER), arenas.of(Kind.OPTIMIZER_STATE)
    held = [parameters.empty([CHUNK_BYTES], [1], torch.uint8) for _ in range(3)]
    del held[1:]
    two_chunks = states.empty([2 * CHUNK_BYTES], [1], torch.uint8)
    assert (parameters.chunks, states.chunks) == (1, 2)
    with pytest.raises(NoRoom):
        states.empty([CHUNK_BYTES], [1], torch.uint8)
    assert len(two_chunks) == 2 * CHUNK_BYTES


def test_an_arena_waits_for_none_that_another_thread_uses() -> None:
    arenas = Arenas(FakeClient(places=1))
    busy, wanting = arenas.of(Kind.PARAMETER), arenas.gradients
    del (dropped := [busy.empty([CHUNK_BYTES], [1], torch.uint8)])[:]
    with ThreadPoolExecutor(1) as threads, busy._lock:
        refused = threads.submit(wanting.empty, [CHUNK_BYTES], [1], torch.uint8)
        assert isinstance(refused.exception(), NoRoom)
    assert not dropped
    assert wanting.empty([CHUNK_BYTES], [1], torch.uint8).numel() == CHUNK_BYTES


@pytest.mark.parametrize("seed", range(5))
def test_live_tensors_keep_their_values_whatever_comes_and_goes(seed: int) -> None:
    draw = random.Random(seed)
    client = FakeClient()
    arena = Arena(Storages(client), Kind.OTHER)
    live: list[tuple[torch.Tensor, int]] = []
    for value in range(200):
        if draw.random() < 0.55 or not live:
            shape = [draw.randint(1, 40) for _ in range(draw.randint(1, 3))]
            dtype = draw.choice([torch.float32, torch.float64, torch.int16, torch.bfloat16])
            stride = torch.empty(shape, device="meta").stride()
            tensor = arena.empty(shape, stride, dtype).fill_(value % 100)
            assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
            live.append((tensor, value % 100))
        else:
            live.pop(draw.randrange(len(live)))
        if draw.random() < 0.1:
            arena.trim()
        if value % 20 == 19:
            assert all(bool((tensor == expected).all()) for tensor, expected in live)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t, _ in live)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert arena.live_bytes >= sum(end - start for start, end in spans)
    live.clear()
    gc.collect()
    del tensor
    arena.trim()
    assert (arena.live_bytes, arena.chunks, client.kinds) == (0, 0, {})


def test_tensors_are_packed_in_the_order_of_the_asking() -> None:
    arena = Arena(Storages(FakeClient()), Kind.PARAMETER)
    tensors = [arena.empty((300,), (1,), torch.float32) for _ in range(10)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert addresses == list(range(addresses[0], addresses[0] + 10 * 1216, 1216))
    assert arena.chunks == 3


def test_a_tensor_larger_than_a_chunk_lies_over_consecutive_places() -> None:
    client = FakeClient()
    arena = Arena(Storages(client), Kind.PARAMETER)
    tensor = arena.empty((5 * CHUNK_BYTES // 4,), (1,), torch.float32).fill_(7)
    assert client.kinds == dict.fromkeys(range(5), Kind.PARAMETER)
    assert tensor.sum().item() == 7 * tensor.numel()


def test_a_view_keeps_the_span_of_its_tensor() -> None:
    arena = Arena(Storages(FakeClient()), Kind.OTHER)
    tensor = arena.empty((100, 10), (10, 1), torch.float32).fill_(1)
    view = tensor[3:5]
    del tensor
    other = arena.empty((100, 10), (10, 1), torch.float32).fill_(2)
    assert arena.live_bytes == 2 * 4032
    assert view.sum().item() == 20
    del view
    again = arena.empty((100, 10), (10, 1), torch.float32)
    assert arena.live_bytes == 2 * 4032
    assert again.data_ptr() < other.data_ptr()


def test_a_numpy_array_keeps_the_span_of_its_tensor() -> None:
    arena = Arena(Storages(FakeClient()), Kind.OTHER)
    array = arena.empty((100,), (1,), torch.float32).fill_(1).numpy()
    arena.empty((100,), (1,), torch.float32).fill_(2)
    assert array.sum() == 100


def test_layouts_survive() -> None:
    arena = Arena(Storages(FakeClient()), Kind.OTHER)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensor = arena.like_storage_of(image)
    assert (tensor.shape, tensor.stride()) == (image.shape, image.stride())
    assert not tensor._is_view()


def test_a_chunk_in_use_is_freed_another_time() -> None:
    from memtide._capi.client import Access, Places

    client = FakeClient()
    arena = Arena(Storages(client), Kind.OTHER)
    arena.empty((CHUNK_BYTES,), (1,), torch.uint8)
    client.acquire(Places([0]), Access.WRITE)
    assert arena.trim() == 0
    client.release(Places([0]))
    assert arena.trim() == 1
    assert client.kinds == {}


def test_a_run_s_chunks_are_allocated_together_and_each_span_has_its_position() -> None:
    arena = Arena(Storages(FakeClient()), Kind.GRADIENT)
    run = Run(CHUNK_BYTES, 4 * CHUNK_BYTES + 64)
    last = arena.empty([64], [1], torch.uint8, Position(run, 4 * CHUNK_BYTES))
    assert arena.chunks == 4
    first = arena.empty([128], [1], torch.uint8, Position(run, CHUNK_BYTES + 64))
    assert last.data_ptr() - first.data_ptr() == 3 * CHUNK_BYTES - 64
    other = arena.empty([64], [1], torch.uint8, Position(run, CHUNK_BYTES + 128))
    assert other.data_ptr() == first.data_ptr() - 64, "its position is taken: it is anywhere"
    del first, last, other
    gc.collect()
    arena.renew()
    assert (arena.chunks, arena.peak_bytes) == (0, 256)
    again = arena.empty([64], [1], torch.uint8, Position(run, CHUNK_BYTES))
    assert (arena.chunks, again.numel()) == (4, 64)


def test_a_run_for_which_there_is_no_room_is_not_allocated() -> None:
    arena = Arena(Storages(FakeClient()), Kind.OTHER)
    tensor = arena.empty([64], [1], torch.uint8, Position(Run(0, 2**40), 0))
    assert arena.chunks == 1
    assert tensor.numel() == 64
