"""Stages that send the largest elements only have the bits of one process with the same zeros."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from harness import Cli
from memtide.errors import InvalidArgument
from memtide.pipeline import Largest
from memtide_methods.pipeline.thinned_messages import ThinnedMessages
from pipeline_stages import STAGES, train

_ELEMENTS = 2 * 6 * 24  # Elements that a stage sends for a micro-batch.


@pytest.mark.parametrize(
    "options",
    [
        ["--share=0.3"],
        ["--share=0.3", "--gradient-share=0.05"],
        ["--share=0.1", "--recomputed"],
    ],
)
def test_thin_stages_have_the_bits_of_layers_between_them(
    options: list[str], cli: Cli, tmp_path: Path
) -> None:
    arguments = ("5", "4", "adamw", *options)
    pipeline = train(cli, tmp_path, STAGES, *arguments)
    assert pipeline.results == train(cli, tmp_path, 1, *arguments).results


def test_pipelines_beside_each_other_are_as_thin(cli: Cli, tmp_path: Path) -> None:
    arguments = ("4", "3", "adamw", "--share=0.1")
    alone = train(cli, tmp_path, 1, *arguments).results
    both = train(cli, tmp_path, 2 * STAGES, *arguments)
    assert both.results == alone + alone
    # The stages of the first one speak for both.
    assert both.err.count("memtide.pipeline") == STAGES


def test_all_of_the_elements_have_the_bits_of_no_option(cli: Cli, tmp_path: Path) -> None:
    arguments = ("4", "3", "sgd")
    plain = train(cli, tmp_path, STAGES, *arguments)
    whole = train(cli, tmp_path, STAGES, *arguments, "--share=1")
    for name in ("losses", "digests"):
        assert [each[name] for each in whole.results] == [each[name] for each in plain.results]
    assert whole.err.count("in 3 steps, 100.0% of whole tensors'") == STAGES
    assert "memtide.pipeline" not in plain.err


def test_bytes_are_counted(cli: Cli, tmp_path: Path) -> None:
    done = train(cli, tmp_path, STAGES, "4", "3", "sgd", "--share=0.1", "--gradient-share=0.02")
    messages = 4 * 3
    # An index and a value each; a gradient's index is one among the elements that travelled.
    forward, backward = messages * 29 * (4 + 4), messages * 6 * (4 + 4)
    whole = messages * _ELEMENTS * 4
    assert sorted(done.out.splitlines()) == [
        f"0 {forward} {whole}",
        f"1 {forward + backward} {2 * whole}",
        f"2 {forward + backward} {2 * whole}",
        f"3 {backward} {whole}",
    ]
    parts = re.findall(r"sent by stage (\d) of 4 in 3 steps, ([\d.]+)% of", done.err)
    assert sorted(parts) == [("0", "20.1"), ("1", "12.2"), ("2", "12.2"), ("3", "4.2")]


class _Stage:
    """Has one tensor of activations, and its gradient."""

    stage_index, num_stages = 0, 2

    def __init__(self, activation: torch.Tensor, gradient: torch.Tensor) -> None:
        self._activation = activation
        self._gradient = gradient

    def get_fwd_send_ops(self, number: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(tensor=self._activation)]

    def get_bwd_send_ops(self, number: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(tensor=self._gradient)]

    get_fwd_recv_ops, get_bwd_recv_ops = get_fwd_send_ops, get_bwd_send_ops


class _Pair:
    """Two stages, and the sizes in bytes of what they send each other."""

    def __init__(self, activation: torch.Tensor, gradient: torch.Tensor, send: Largest) -> None:
        self.there = torch.full_like(activation, 7)
        self.back = torch.full_like(gradient, 7)
        self._first = ThinnedMessages(
            _Stage(activation, self.back),  # type: ignore[arg-type]
            send,
            prints=False,
        )
        self._second = ThinnedMessages(
            _Stage(self.there, gradient),  # type: ignore[arg-type]
            send,
            prints=False,
        )
        sizes = [
            _copied(self._first.get_fwd_send_ops(0), self._second.get_fwd_recv_ops(0)),
        ]
        self._second.unpack_fwd(0)
        sizes.append(_copied(self._second.get_bwd_send_ops(0), self._first.get_bwd_recv_ops(0)))
        self._first.unpack_bwd(0)
        self.sizes = sizes


def _copied(sent: list[SimpleNamespace], received: list[SimpleNamespace]) -> int:
    source, target = sent[0].tensor, received[0].tensor
    assert source.dtype == target.dtype
    assert source.shape == target.shape
    target.copy_(source)
    size: int = source.nbytes
    return size


def _random(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(10, 20, generator=generator).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_come_back_for_the_largest_elements(dtype: torch.dtype) -> None:
    activation, gradient = _random(dtype)
    pair = _Pair(activation, gradient, Largest(0.1))
    chosen = pair.there != 0
    assert int(chosen.sum()) == 20
    assert activation[chosen].abs().min() >= activation[~chosen].abs().max()
    assert torch.equal(pair.there, torch.where(chosen, activation, 0))
    assert torch.equal(pair.back, torch.where(chosen, gradient, 0))
    assert pair.sizes == [20 * (4 + dtype.itemsize), 20 * dtype.itemsize]


def test_gradients_may_be_fewer() -> None:
    activation, gradient = _random(torch.float32)
    pair = _Pair(activation, gradient, Largest(0.1, gradient_share=0.02))
    travelled, chosen = pair.there != 0, pair.back != 0
    assert int(chosen.sum()) == 4
    assert not (chosen & ~travelled).any()
    assert gradient[chosen].abs().min() >= gradient[travelled & ~chosen].abs().max()
    assert torch.equal(pair.back, torch.where(chosen, gradient, 0))


@pytest.mark.parametrize(
    ("activation", "share"),
    [
        (torch.randint(1, 32, (10, 20)), 0.1),  # Tokens.
        (torch.randn(10, 20), 0.5),
        (torch.randn(10, 20).bfloat16(), 0.34),
        (torch.randn([]), 0.1),
    ],
)
def test_what_would_not_be_smaller_goes_whole(activation: torch.Tensor, share: float) -> None:
    pair = _Pair(activation, activation.clone(), Largest(share))
    assert torch.equal(pair.there, activation)
    assert torch.equal(pair.back, activation)
    assert pair.sizes == [activation.nbytes, activation.nbytes]


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf")])
def test_what_is_no_number_travels(wrong: float) -> None:
    activation, gradient = _random(torch.float32)
    activation[3, 4] = gradient[3, 4] = wrong
    pair = _Pair(activation, gradient, Largest(0.01, gradient_share=0.005))
    for received in (pair.there, pair.back):
        assert received.isfinite().logical_not().nonzero().tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0,), "share is 0; it must be above 0, and 1 at most"),
        ((1.5,), "share is 1.5; it must be above 0, and 1 at most"),
        ((0.1, 0), "gradient_share is 0; it must be above 0, and 0.1 at most"),
        ((0.1, 0.2), "gradient_share is 0.2; it must be above 0, and 0.1 at most"),
    ],
)
def test_wrong_options_are_named(options: tuple[float, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Largest(*options)
