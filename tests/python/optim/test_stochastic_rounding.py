"""Stochastic rounding gives each element bits of its own, and an exact mean."""

from __future__ import annotations

import math

import pytest
import torch
from memtide.optim._stochastic_rounding import stochastic_round

ELEMENTS = 5003


def values() -> torch.Tensor:
    scale = 10 ** torch.empty(ELEMENTS).uniform_(
        -30, 30, generator=torch.Generator().manual_seed(1)
    )
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(2)) * scale


def random_bits(seed: int, step: int, number: int) -> int:
    """The bits that are added to one element, in Python's integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    def scramble(x: int) -> int:
        x = (x ^ x >> 16) * 0x21F0AAAD % 2**32
        x = (x ^ x >> 15) * 0xD35A2D97 % 2**32
        return x ^ x >> 15

    golden = 0x9E3779B97F4A7C15
    key = mix((seed + golden) % 2**64) ^ step * golden % 2**64
    key = mix((mix(key) + (number >> 32) + 1) % 2**64)
    return scramble((scramble(number % 2**32 ^ key % 2**32) + (key >> 32)) % 2**32) >> 16


@pytest.mark.parametrize("first_element", [0, 12345, 2**32 - 17, 2**40 + 3])
def test_each_element_gets_the_bits_of_its_number(first_element: int) -> None:
    exact, rounded = values(), torch.empty(ELEMENTS, dtype=torch.bfloat16)
    stochastic_round(exact, rounded, seed=7, step=3, first_element=first_element)
    expected = [
        (bits % 2**32 + random_bits(7, 3, first_element + n)) >> 16
        for n, bits in enumerate(exact.view(torch.int32).tolist())
    ]
    assert [bits % 2**16 for bits in rounded.view(torch.int16).tolist()] == expected
    assert not torch.equal(rounded, exact.bfloat16()), "to nearest would be something else"


def test_the_bits_are_those_of_every_version() -> None:
    numbers = (0, 1, 12345, 2**32 - 1, 2**32, 2**40 + 3)
    assert [random_bits(7, 3, number) for number in numbers] == [
        1220,
        14578,
        51131,
        21937,
        35595,
        47131,
    ]


def test_parts_are_rounded_as_the_whole() -> None:
    whole, parts = (torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in "12")
    stochastic_round(values(), whole, seed=1, step=9, first_element=100)
    for begin in range(0, ELEMENTS, 1000):
        part = slice(begin, begin + 1000)
        stochastic_round(values()[part], parts[part], seed=1, step=9, first_element=100 + begin)
    assert torch.equal(whole, parts)


def test_it_is_right_in_the_mean() -> None:
    low, high = 1.0, 1.0 + 2**-7
    for share in (0.1, 0.5, 0.9):
        exact = torch.full((40000,), low + share * (high - low))
        rounded = torch.empty(40000, dtype=torch.bfloat16)
        stochastic_round(exact, rounded, seed=1, step=1, first_element=0)
        assert set(rounded.tolist()) == {low, high}
        assert (rounded == high).float().mean().item() == pytest.approx(share, abs=0.01)


def test_steps_and_seeds_have_chances_of_their_own() -> None:
    seen = []
    for seed, step in ((1, 1), (1, 2), (2, 1)):
        rounded = torch.empty(ELEMENTS, dtype=torch.bfloat16)
        stochastic_round(values(), rounded, seed=seed, step=step, first_element=0)
        seen.append(rounded)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 0.3 < (seen[one] != seen[other]).float().mean().item() < 0.4, "as of two coins"


def test_what_is_a_bfloat16_number_stays() -> None:
    special = [0.0, -0.0, math.inf, -math.inf, 1.0, -3.5, 2.0**-133]
    exact = torch.tensor(special).repeat(100)
    rounded = torch.empty(len(exact), dtype=torch.bfloat16)
    stochastic_round(exact, rounded, seed=1, step=1, first_element=0)
    assert torch.equal(rounded.float().view(torch.int32), exact.view(torch.int32))
    nan = torch.tensor([math.nan, -math.nan, *torch.tensor([0x7F800001]).int().view(torch.float32)])
    stochastic_round(nan, rounded[:3], seed=1, step=1, first_element=0)
    assert rounded[:3].isnan().all()


def test_the_order_is_that_of_memory() -> None:
    exact = values()[:4800].reshape(60, 80)
    rows = torch.empty(60, 80, dtype=torch.bfloat16)
    stochastic_round(exact, rows, seed=1, step=1, first_element=0)
    columns = torch.empty(80, 60, dtype=torch.bfloat16).t()
    stochastic_round(exact.t().contiguous().t(), columns, seed=1, step=1, first_element=0)
    assert not torch.equal(rows, columns)
    flat = torch.empty(4800, dtype=torch.bfloat16)
    stochastic_round(exact.t().reshape(-1), flat, seed=1, step=1, first_element=0)
    assert torch.equal(columns.t().reshape(-1), flat)
    gaps = torch.empty(60, 200, dtype=torch.bfloat16)[:, ::2][:, :80]
    stochastic_round(exact, gaps, seed=1, step=1, first_element=0)
    assert torch.equal(gaps, rows)
