"""The chunk size that the search finds, for parameters whose best size is known by hand."""

from __future__ import annotations

import random

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Kind
from memtide._memory import chunk_size
from memtide._memory.arena import Arena, Storages
from memtide._memory.chunk_size import CANDIDATES, Choice, Parameter

MIB = 2**20
MIN_SLOTS = 4


def search(sizes_bytes: list[int], **pools_mib: int) -> Choice:
    choice = chunk_size.search(
        [Parameter(size) for size in sizes_bytes],
        {tier: size * MIB for tier, size in pools_mib.items()},
        min_slots=MIN_SLOTS,
    )
    assert choice is not None
    return choice


def test_waste_is_what_the_last_chunk_of_each_list_has_left() -> None:
    # Parameters, gradients and two rows of states take 3 x 3 MiB each.
    choice = search([3 * MIB] * 3, host=1024)
    allocated = [candidate.allocated_bytes // MIB for candidate in choice.candidates]
    assert allocated == [4 * 10, 4 * 12, 4 * 16, 4 * 16, 4 * 32, 4 * 64]
    assert choice.candidates[1].waste == pytest.approx(12 / 48)


def test_an_update_needs_the_chunks_under_all_that_it_touches() -> None:
    choice = search([3 * MIB] * 3, host=1024)
    # With 2 MiB chunks, the second parameter lies in chunks 1 and 2, and so do its gradient and
    # states in theirs.
    assert choice.candidates[0].widest == 2 + 2 + 2 * 2


def test_an_embedding_larger_than_any_chunk_spans_chunks_and_wastes_nothing() -> None:
    choice = search([1024 * MIB] + [4 * MIB] * 64, host=2048, ssd=16384)
    for candidate in choice.candidates:
        assert candidate.waste == 0
        assert candidate.chunks == (1024 + 256) * 4 * MIB // candidate.chunk_bytes
    assert choice.best.widest > choice.best.slots  # No size fits; one is chosen all the same.


def test_thousands_of_small_tensors_are_packed_together() -> None:
    choice = search([2048] * 5000 + [1000] * 5000, host=16, ssd=1024)
    assert choice.best.used_bytes == 4 * 2048 * 5000  # Tensors below 1 KiB are not adopted.
    assert choice.candidates[0].chunks == 5 + 5 + 10
    assert choice.best.shortage == (0, 0, False)
    assert choice.chunk_bytes == 2 * MIB  # The only size with eight slots.


def test_one_parameter_gets_the_size_that_brings_it_soonest() -> None:
    assert search([4 * MIB], host=1024).chunk_bytes == 4 * MIB


def test_without_parameters_or_pools_there_is_no_choice() -> None:
    assert chunk_size.search([], {"host": 1024 * MIB}, min_slots=MIN_SLOTS) is None
    assert chunk_size.search([Parameter(1023)], {"host": 1024 * MIB}, min_slots=MIN_SLOTS) is None
    assert chunk_size.search([Parameter(4096)], {"host": 0}, min_slots=MIN_SLOTS) is None


def test_states_are_as_many_as_the_optimizer_keeps() -> None:
    plain = chunk_size.search(
        [Parameter(64 * MIB, states=())], {"host": 2048 * MIB}, min_slots=MIN_SLOTS
    )
    assert plain is not None
    assert plain.best.used_bytes == 2 * 64 * MIB
    assert plain.best.widest == 2 * 64 * MIB // plain.chunk_bytes


def test_states_are_as_large_as_they_are() -> None:
    half = Parameter(32 * MIB, states=(64 * MIB,) * 3)  # bf16, with moments and a master in fp32.
    choice = chunk_size.search([half], {"host": 2048 * MIB}, min_slots=MIN_SLOTS)
    assert choice is not None
    assert choice.best.used_bytes == (2 * 32 + 3 * 64) * MIB
    (two,) = (candidate for candidate in choice.candidates if candidate.chunk_bytes == 2 * MIB)
    assert two.chunks == 2 * 16 + 3 * 32


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    frozen = [Parameter(64 * MIB, trained=False)] * 4
    choice = chunk_size.search(
        [*frozen, Parameter(64 * MIB)], {"host": 2048 * MIB}, min_slots=MIN_SLOTS
    )
    assert choice is not None
    assert choice.best.used_bytes == (4 + 4) * 64 * MIB


def test_a_tier_that_would_be_lent_in_too_few_slots_counts_as_no_room() -> None:
    choice = search([MIB] * 4, host=192, ssd=20)
    assert [candidate.lacking for candidate in choice.candidates] == [0, 0, 2, 3, 4, 4]
    assert choice.chunk_bytes == 4 * MIB


def test_what_the_pools_have_no_room_for_is_not_chosen() -> None:
    # 2 MiB chunks fill the last tier to the byte; in larger ones three kinds waste too much.
    choice = search([2 * MIB] * 3, device=16, host=24)
    assert [candidate.lacking > 0 for candidate in choice.candidates] == [False] + [True] * 6
    assert choice.chunk_bytes == 2 * MIB


def test_more_than_is_kept_is_moved_and_larger_chunks_pay_as_there_is_more() -> None:
    sizes = [4 * MIB] * 100
    chosen = [
        search(sizes * times, host=512 * times, ssd=64 * 1024).chunk_bytes for times in (1, 8)
    ]
    assert chosen[0] < chosen[1]


def test_slots_decide_against_chunks_too_large_for_the_device() -> None:
    choice = search([MIB] * 400, device=64, host=2048)
    assert choice.best.slots >= chunk_size.LEAST_SLOTS
    assert [candidate.moved_bytes for candidate in choice.candidates] == sorted(
        candidate.moved_bytes for candidate in choice.candidates
    )


@pytest.mark.parametrize("seed", range(10))
def test_arenas_lay_tensors_as_the_search_says(seed: int) -> None:
    draw = random.Random(seed)
    client = FakeClient()
    arena = Arena(Storages(client), Kind.PARAMETER)
    sizes = [draw.choice([1024, 1500, 4096, 5000, 20_000]) for _ in range(50)]
    held = [arena.empty([size], [1], torch.uint8) for size in sizes]
    adopted = [Parameter(size, trained=False) for size in sizes]
    estimate = chunk_size.estimate(adopted, {"host": 1024 * MIB}, CHUNK_BYTES, min_slots=MIN_SLOTS)
    assert estimate.chunks == arena.chunks
    assert estimate.used_bytes == sum(tensor.numel() for tensor in held)


def test_a_size_that_is_about_as_good_is_left_as_it_is() -> None:
    parameters = [Parameter(4 * MIB)] * 100
    pools = {"host": 512 * MIB, "ssd": 8192 * MIB}
    best = search([4 * MIB] * 100, host=512, ssd=8192).chunk_bytes
    assert chunk_size.clearly_better(parameters, pools, best, min_slots=MIN_SLOTS) is None
    estimates = chunk_size.clearly_better(parameters, pools, max(CANDIDATES), min_slots=MIN_SLOTS)
    assert estimates is not None
    present, better = estimates
    assert (present.chunk_bytes, better.chunk_bytes) == (max(CANDIDATES), best)
