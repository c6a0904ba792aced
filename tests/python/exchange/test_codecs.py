"""Values that are left out of a message are in a later one, and all that a message has arrives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from memtide_methods.exchange.exchange import Codec
from memtide_methods.exchange.low_rank import LowRank
from memtide_methods.exchange.threshold import Threshold

_SHAPES = [(64, 40), (40,), (8, 4, 16)]
_ELEMENTS = sum(torch.Size(shape).numel() for shape in _SHAPES)


def _low_rank(dtype: torch.dtype, rank: int = 2) -> LowRank:
    parameters = [torch.zeros(shape, dtype=dtype) for shape in _SHAPES]
    bucket = SimpleNamespace(parameters=lambda: parameters)
    return LowRank(bucket, rank)  # type: ignore[arg-type]


def _threshold(dtype: torch.dtype, *, share: float = 0.1, renew_every: int = 3) -> Threshold:
    return Threshold(torch.zeros(_ELEMENTS, dtype=dtype), share, renew_every)


def _codec(name: str, dtype: torch.dtype) -> Codec:
    return {"low_rank": _low_rank, "threshold": _threshold}[name](dtype)


def _gradients(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(_ELEMENTS, generator=generator).to(dtype) for _ in range(count)]


def _sent(codec: Codec, gradient: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(_ELEMENTS)
    codec.add(codec.encode(gradient), total)
    return total


both = pytest.mark.parametrize("name", ["threshold", "low_rank"])


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_left_out_is_sent_later(name: str, dtype: torch.dtype) -> None:
    codec = _codec(name, dtype)
    gradients = _gradients(4, dtype)
    sent = sum(_sent(codec, gradient) for gradient in gradients)
    all_of_them = sum(gradient.float() for gradient in gradients)
    assert not torch.allclose(sent, all_of_them, atol=0.5)
    for _ in range(400):
        sent += _sent(codec, torch.zeros(_ELEMENTS, dtype=dtype))
    assert torch.allclose(sent, all_of_them, atol=1e-2)


@both
def test_messages_have_one_size(name: str) -> None:
    codec = _codec(name, torch.float32)
    gradients = [*_gradients(4, torch.float32), torch.zeros(_ELEMENTS), torch.ones(_ELEMENTS)]
    sizes = {codec.encode(gradient).nbytes for gradient in gradients}
    assert len(sizes) == 1
    assert sizes.pop() < 4 * _ELEMENTS / 2


@both
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_arrives_and_is_not_kept(name: str, wrong: float) -> None:
    codec = _codec(name, torch.float32)
    good = _gradients(3, torch.float32)
    _sent(codec, good[0])
    bad = good[1].clone()
    bad[70] = wrong
    assert not _sent(codec, bad).isfinite().all()
    for gradient in (good[2], *_gradients(20, torch.float32)):
        assert _sent(codec, gradient).isfinite().all()


def test_the_largest_elements_are_sent() -> None:
    codec = _threshold(torch.float32, share=0.01)
    gradient = _gradients(1, torch.float32)[0]
    sent = _sent(codec, gradient)
    largest = gradient.abs().topk(round(0.01 * _ELEMENTS)).indices
    assert sorted(sent.nonzero().view(-1).tolist()) == sorted(largest.tolist())
    assert torch.equal(sent[largest], gradient[largest])


def test_a_threshold_is_used_until_it_is_renewed() -> None:
    codec = _threshold(torch.float32, share=0.1, renew_every=3)
    ones = torch.ones(_ELEMENTS)
    ones[: _ELEMENTS // 10] = 10
    counts = []
    for _ in range(4):
        counts.append(int((_sent(codec, ones) != 0).sum()))
        codec._left.zero_()
        ones *= 0.2  # From the second step on, all are below the threshold of the first.
    assert counts == [counts[0], 0, 0, counts[0]]
    assert counts[0] == pytest.approx(_ELEMENTS / 10, abs=1)


def test_more_than_the_room_waits() -> None:
    codec = _threshold(torch.float32, share=0.1)
    _sent(codec, torch.full([_ELEMENTS], 0.1))
    codec._left.zero_()
    gradient = _gradients(1, torch.float32)[0]
    sent = _sent(codec, gradient)
    room = int((sent != 0).sum())
    assert room == pytest.approx(0.125 * _ELEMENTS, abs=2)
    assert torch.equal(gradient.abs().topk(room).values.min(), sent[sent != 0].abs().min())


def test_a_gradient_of_low_rank_is_sent_whole() -> None:
    codec = _low_rank(torch.float32)
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(64, 2, generator=generator) @ torch.randn(2, 40, generator=generator)
    gradient = torch.zeros(_ELEMENTS)
    gradient[:2560] = matrix.view(-1)
    for _ in range(3):
        sent = _sent(codec, gradient)
    assert torch.allclose(sent, gradient, atol=1e-4)


def test_vectors_are_sent_whole() -> None:
    gradient = _gradients(1, torch.float32)[0]
    sent = _sent(_low_rank(torch.float32), gradient)
    assert torch.equal(sent[2560:2600], gradient[2560:2600])
    assert not torch.equal(sent[2600:], gradient[2600:])  # 8 rows of 64 elements.


def test_components_are_followed_from_step_to_step() -> None:
    codec = _low_rank(torch.float32, rank=1)
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(64, generator=generator), torch.randn(40, generator=generator)
    errors = []
    for _ in range(8):
        noise = torch.randn(64, 40, generator=generator)
        gradient = torch.zeros(_ELEMENTS)
        gradient[:2560] = (torch.outer(left, right) + 0.3 * noise).view(-1)
        codec._parts[0]._left.zero_()  # type: ignore[union-attr]
        error = _sent(codec, gradient)[:2560].view(64, 40) - torch.outer(left, right)
        errors.append(float(error.norm() / (left.norm() * right.norm())))
    assert errors[-1] < 0.1
