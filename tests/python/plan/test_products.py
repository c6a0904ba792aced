"""The time of products of matrices: tiles, waves of them, and the bytes that they pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memtide._plan_file.model import Product
from memtide_plan import catalogue
from memtide_plan.calibration import constant
from memtide_plan.estimate.products import Multiplier, passes
from memtide_plan.estimate.work import Rates

CARD = Multiplier(flop_per_s=1e14, memory_bytes_per_s=1e12, multiprocessors=100)


def test_a_product_takes_its_operations_where_every_wave_is_full() -> None:
    # 50 x 40 tiles of 128 x 128 are 20 waves.
    assert CARD.seconds(50 * 128, 8192, 40 * 128, 2) == pytest.approx(2 * 6400 * 8192 * 5120 / 1e14)


def test_the_last_wave_takes_as_long_as_a_full_one() -> None:
    full = CARD.seconds(50 * 128, 8192, 40 * 128, 2)
    assert CARD.seconds(50 * 128, 8192, 40 * 128 + 1, 2) > 1.02 * full
    # A tile that is not full takes as long as one that is.
    assert CARD.seconds(1000, 8192, 1000, 2) == CARD.seconds(1024, 8192, 1024, 2)


def test_few_tokens_reach_less_of_the_peak() -> None:
    by_token = [
        CARD.seconds(tokens, 4096, 4096, 2) / tokens for tokens in (256, 2048, 4096, 1 << 16)
    ]
    assert by_token == sorted(by_token, reverse=True)
    assert by_token[0] > 1.5 * by_token[-1]


def test_without_known_multiprocessors_every_size_reaches_the_peak() -> None:
    card = replace(CARD, multiprocessors=None)
    assert card.seconds(1000, 8192, 1000, 2) == pytest.approx(2 * 1000 * 8192 * 1000 / 1e14)


def test_a_narrow_product_takes_the_bytes_that_it_passes() -> None:
    card = replace(CARD, multiprocessors=None)
    passed = (8192 * 4096 + 4096 * 8 + 8192 * 8) * 2
    assert card.seconds(8192, 4096, 8, 2) == pytest.approx(passed / 1e12)


def test_a_frozen_matrix_has_no_gradient_and_experts_share_the_tokens() -> None:
    card = replace(CARD, multiprocessors=None)
    one = Product(inputs=4096, outputs=4096)
    trained = passes((one,), 8192, card, 2)
    assert trained.forward == trained.inputs == trained.weights > 0
    assert passes((replace(one, trained=False),), 8192, card, 2).weights == 0
    # Two of eight compute for a token: as many operations as two matrices have.
    experts = passes((replace(one, count=8, active=2),), 8192, card, 2)
    assert experts.forward == pytest.approx(2 * trained.forward)


def test_attention_of_the_generation_before_reaches_less_on_a_hopper() -> None:
    share = constant("attention.older_on_hopper")
    for name, factor in (("h100-sxm", share), ("a100-80", 1.0)):
        card = catalogue.device(name)
        older = Rates.of(card, "bfloat16")
        own = Rates.of(card, "bfloat16", attention="attention.tuned")
        ratio = older.attention_flop_per_s / own.attention_flop_per_s
        expected = factor * constant("attention.flash2") / constant("attention.tuned")
        assert ratio == pytest.approx(expected)
        assert older.flop_per_s == own.flop_per_s
