"""Modules on the meta device: which are blocks, and what their forward pass computes and saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memtide._plan_file.model import Model
from memtide_plan.models.modules import describe, rows
from memtide_plan.models.modules.forward import forward
from memtide_plan.models.modules.states import states_of
from torch import nn
from torch.nn import functional

_WIDTH, _BATCH, _TOKENS = 64, 2, 16


class _Attention(nn.Module):
    """`fused`: torch's operation; else two products and a softmax."""

    def __init__(self, *, fused: bool, causal: bool) -> None:
        super().__init__()
        self.fused, self.causal = fused, causal
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 3, 4, _WIDTH // 4)
        q, k, v = (part.transpose(1, 2) for part in self.mix(x).view(shape).unbind(2))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return x + mixed.transpose(1, 2).reshape(x.shape)


class _Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(100, _WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(_WIDTH, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _parts(model: nn.Module) -> list[rows.Part]:
    return rows.parts_of(model, {id(parameter) for parameter in model.parameters()})


def _seen(model: nn.Module, inputs: torch.Tensor) -> Model:
    model.to("meta")
    parts, batch = _parts(model), describe.Batch.of(inputs)
    assert batch is not None
    seen = forward(model, parts, lambda: model(inputs.to("meta")))
    return describe.model("model", parts, seen, batch)


def _tokens() -> torch.Tensor:
    return torch.zeros(_BATCH, _TOKENS, dtype=torch.long)


def test_attention_is_of_pairs_of_tokens_however_it_is_written() -> None:
    for fused in (True, False):
        blocks: list[nn.Module] = [_Attention(fused=fused, causal=True) for _ in range(2)]
        model = _seen(_Model(blocks), _tokens())
        _, row, _ = model.blocks
        assert (row.name, row.count) == ("blocks", 2)
        assert row.flop_per_token == 2 * 3 * _WIDTH**2
        assert row.flop_per_token_pair == 4 * _WIDTH
        # Two products compute all pairs, also those that a mask removes.
        assert model.causal is fused
        # Its input, queries, keys and values, and four numbers of 4 bytes beside the result.
        assert row.input_bytes_per_token == 4 * _WIDTH
        assert row.attention_bytes_per_token == (4 * _WIDTH + 4 * 4 if fused else 0)


def test_an_encoder_is_not_causal() -> None:
    blocks: list[nn.Module] = [_Attention(fused=True, causal=False) for _ in range(2)]
    assert not _seen(_Model(blocks), _tokens()).causal


def test_logits_count_as_a_softmax_in_float32() -> None:
    blocks: list[nn.Module] = [nn.Linear(_WIDTH, _WIDTH) for _ in range(2)]
    head = _seen(_Model(blocks).bfloat16(), _tokens()).blocks[-1]
    assert head.saved_bytes_per_token() == 2 * _WIDTH + 4 * 100
    assert not head.recomputable


def test_a_sample_without_tokens_is_one_token() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
    described = _seen(model, torch.zeros(5, 3, 10, 10))
    (block,) = described.blocks
    assert block.flop_per_token == 2 * 8 * 3 * 9 * 100
    # The image, and the result of ReLU.
    assert block.saved_bytes_per_token() == 4 * (300 + 800)
    assert not described.causal


def test_what_comes_before_blocks_and_after_them() -> None:
    model = _Model([nn.Linear(_WIDTH, _WIDTH) for _ in range(3)])
    model.head.weight = model.words.weight
    first, *blocks, last = _parts(model)
    assert (first.name, first.parameters) == ("embedding", 100 * _WIDTH)
    assert [part.parameters for part in blocks] == [_WIDTH * (_WIDTH + 1)] * 3
    # Its matrix is the embedding's.
    assert (last.name, last.parameters) == ("head", 100)


def test_rows_of_other_shapes_are_other_blocks() -> None:
    widths = [8, 8, 8, 16, 16, 4]
    layers = [nn.Linear(i, o) for i, o in zip(widths, widths[1:], strict=False)]
    model = nn.Sequential(*layers)
    described = describe.parameters_alone("model", _parts(model))
    counts = [(block.count, block.parameters) for block in described.blocks]
    assert counts == [(2, 72), (1, 144), (1, 272), (1, 68)]
    assert described.parameters() == sum(p.numel() for p in model.parameters())


def test_a_frozen_parameter_is_not_trained() -> None:
    model = _Model([nn.Linear(_WIDTH, _WIDTH) for _ in range(2)])
    parts = rows.parts_of(model, {id(model.head.weight)})
    described = describe.parameters_alone("model", parts)
    assert described.trained_parameters() == 100 * _WIDTH
    assert described.blocks[0].flop_per_token == 0
    assert described.blocks[1].flop_per_token == 2 * _WIDTH * (_WIDTH + 1)


class _Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})


@pytest.mark.parametrize(
    ("make", "optimizer_bytes"),
    [
        (lambda p: torch.optim.AdamW(p), 8),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 12),
        (lambda p: torch.optim.SGD(p), 0),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 4),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), 12),
        (lambda p: torch.optim.Adafactor(p), 0),
    ],
)
def test_states_of_torchs_optimizers(make: Any, optimizer_bytes: int) -> None:
    states, assumed = states_of(make([nn.Parameter(torch.zeros(2))]), 4)
    assert (states.weight, states.gradient, states.optimizer) == (4, 4, optimizer_bytes)
    assert assumed is None


def test_states_of_an_unknown_optimizer_are_two_moments_and_it_is_named() -> None:
    states, assumed = states_of(_Own([nn.Parameter(torch.zeros(2))]), 2)
    assert states.optimizer == 4
    assert assumed is not None and "_Own is not known" in assumed
