"""The batches of a step compute each element once, copy each other byte, and need few chunks."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from memtide._optimizer_step.partition import (
    Batch,
    BatchLimits,
    Geometry,
    Interval,
    Span,
    Update,
    batches_of,
    copies_of,
    parts_of,
    uncovered,
)
from rank_batches import adam_options

CHUNK = 4096
BASE = 1 << 20
GEOMETRY = Geometry(BASE, CHUNK)
OPTIONS = adam_options()


def at(place: int, offset: int = 0) -> int:
    return BASE + place * CHUNK + offset


def update(elements: int, *addresses: int, item_bytes: int = 4) -> Update:
    gradient, *written = (Span(address, item_bytes) for address in addresses)
    return Update(OPTIONS, elements, gradient, tuple(written))


def batches(
    updates: list[Update], live: list[Interval], most_chunks: int, cuts: Collection[int] = ()
) -> list[Batch]:
    limits = BatchLimits(most_chunks)
    return batches_of(updates, copies_of(updates, live, GEOMETRY), GEOMETRY, limits, cuts)


def test_a_part_ends_where_any_of_its_tensors_leaves_its_chunk() -> None:
    whole = update(1500, at(0, 64), at(10, 4032), at(20))
    parts = list(parts_of(whole, GEOMETRY))
    assert [part.elements for part in parts] == [16, 992, 16, 16, 460]
    assert parts[0].written == ((at(10, 4032), at(11)), (at(20), at(20, 64)))
    assert parts[2].gradient == at(1)
    assert parts[-1].written[1] == (at(21, 64), at(21, 476 * 4))


def test_elements_of_two_and_four_bytes_are_cut_together() -> None:
    mixed = Update(OPTIONS, 3000, Span(at(0), 2), (Span(at(5), 4),))
    assert [part.elements for part in parts_of(mixed, GEOMETRY)] == [1024, 1024, 952]


def test_batches_keep_to_their_chunks_unless_one_part_needs_more() -> None:
    updates = [update(1024, at(i), at(100 + i), at(200 + i), at(300 + i)) for i in range(10)]
    assert [len(b.parts) for b in batches(updates, [], 21)] == [3, 3, 3, 1]
    assert [len(b.parts) for b in batches(updates, [], 2)] == [1] * 10
    assert batches([], [], 8) == []


def test_batches_of_ranks_write_no_chunk_in_common() -> None:
    # The states of the second and the third parameter share a chunk, and their parameters do not.
    updates = [
        update(512, at(0), at(10), at(20)),
        update(512, at(1), at(11), at(21)),
        update(512, at(2), at(12), at(21, 2048)),
        update(512, at(3), at(13), at(23)),
    ]
    limits = BatchLimits(chunks=5, chunks_apart=8)
    cut = batches_of(updates, {}, GEOMETRY, limits)
    assert [sorted(batch.writes) for batch in cut] == [[10, 20], [11, 12, 21], [13, 23]]
    assert all(batch.is_apart for batch in cut)
    # Updates that need more chunks than a batch of ranks may have are cut as without ranks.
    cut = batches_of(updates, {}, GEOMETRY, replace(limits, chunks_apart=7))
    assert [sorted(batch.writes) for batch in cut] == [[10, 20], [11, 21], [12, 21], [13, 23]]
    assert [batch.is_apart for batch in cut] == [True, False, False, True]
    assert not any(batch.is_apart for batch in batches(updates, [], 5))


def test_parameter_groups_that_share_chunks_are_in_one_batch() -> None:
    other = adam_options(weight_decay=0.1)
    updates = [
        replace(update(64, at(0, 256 * i), at(1, 256 * i)), options=(OPTIONS, other)[i % 2])
        for i in range(4)
    ]
    (batch,) = batches(updates, [(at(1, 2000), at(1, 2100))], 8)
    assert [part.options for part in batch.parts] == [OPTIONS, other] * 2
    assert batch.copies == [(at(1, 2000), at(1, 2100))]


def test_what_lives_in_a_written_chunk_and_is_not_stepped_is_copied_once() -> None:
    updates = [update(256, at(0), at(1, 1024)), update(256, at(2), at(1, 3072))]
    live = [(at(0), at(0, 1024)), (at(1), at(1, 2048)), (at(1, 3072), at(3))]
    cut = batches(updates, live, 3)
    assert [batch.copies for batch in cut] == [[(at(1), at(1, 1024))], []]


def test_neighbours_across_an_alignment_gap_are_one_copy() -> None:
    assert uncovered([(0, 100), (128, 200), (320, 400)], []) == [(0, 200), (320, 400)]
    assert uncovered([(0, 100)], [(0, 100)]) == []
    assert uncovered([(0, 300)], [(64, 128), (192, 256)]) == [(0, 64), (128, 192), (256, 300)]


def random_intervals(rng: random.Random, end: int) -> list[Interval]:
    cuts = sorted(rng.sample(range(0, end, 64), 2 * rng.randint(1, 12)))
    return [pair for pair in zip(cuts[::2], cuts[1::2], strict=True) if pair[0] < pair[1]]


def test_random_intervals_are_as_byte_by_byte() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        live, covered = random_intervals(rng, 4096), random_intervals(rng, 4096)
        expected = {b for s, e in live for b in range(s, e)}
        expected -= {b for s, e in covered for b in range(s, e)}
        intervals = uncovered(live, covered)
        assert {b for s, e in intervals for b in range(s, e)} == expected
        assert intervals == sorted(intervals)


def test_random_steps_write_every_byte_that_lives_exactly_once() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        places = 12
        free = {"gradient": at(0), "parameter": at(100), "state": at(200)}
        live, updates = [], []
        for _ in range(rng.randint(1, 20)):
            elements = rng.choice([256, 300, 1024, 3000])
            spans = []
            for role in free:
                address = free[role]
                free[role] = address + -(-elements * 4 // 64) * 64 + 64 * rng.randint(0, 3)
                live.append((address, address + elements * 4))
                spans.append(address)
            if rng.random() < 0.7:
                updates.append(update(elements, *spans))
        live.sort()
        # The same holds wherever batches begin.
        cuts = {one.written[0].address for one in updates if rng.random() < 0.3}
        cut = batches(updates, live, places, cuts)
        begun = {batch.parts[0].written[0][0] for batch in cut}
        assert cuts <= begun
        written: dict[int, int] = {}
        for batch in cut:
            assert len(batch.reads) + 2 * len(batch.writes) <= places
            spans = [*batch.copies, *(span for part in batch.parts for span in part.written)]
            for start, end in spans:
                assert GEOMETRY.place(start) == GEOMETRY.place(end - 1)
                for byte in range(start, end, 4):
                    written[byte] = written.get(byte, 0) + 1
        assert set(written.values()) <= {1}
        changed = {place for batch in cut for place in batch.writes}
        for start, end in live:
            for byte in range(start, end, 4):
                assert (byte in written) == (GEOMETRY.place(byte) in changed)
