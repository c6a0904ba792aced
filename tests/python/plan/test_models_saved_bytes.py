"""A layer of a config.json saves for backward the bytes that autograd saves of such a layer in
torch: every storage that it packs counts, once, and parameters do not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memtide_plan.models.config import from_config
from memtide_plan.models.described import Options
from torch import nn
from torch.nn import functional

_WIDTH, _HEADS, _TOKENS = 64, 4, 96


class _FusedRmsNorm(torch.autograd.Function):
    """RMSNorm as one operation, as torch has it on GPUs: it saves its input and a number a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise AssertionError("these tests look at forward passes")


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _FusedRmsNorm.apply(x, self.weight)


@dataclass(frozen=True)
class _Kind:
    key_heads: int = _HEADS
    head_width: int = _WIDTH // _HEADS
    inner: int = 176
    rms: bool = True
    gated: bool = True
    relu: bool = False
    bias: bool = False
    head_norms: bool = False
    norms: str = "before"
    dropout: bool = False
    experts: int = 0
    shared: int = 0


def _dropped(x: torch.Tensor) -> torch.Tensor:
    # As on GPUs: the mask has a byte for each element.
    return torch.native_dropout(x, 0.1, True)[0]


class _Mlp(nn.Module):
    def __init__(self, kind: _Kind, inner: int) -> None:
        super().__init__()
        self.relu = kind.relu
        self.gate = nn.Linear(_WIDTH, inner, bias=kind.bias) if kind.gated else None
        self.up = nn.Linear(_WIDTH, inner, bias=kind.bias)
        self.down = nn.Linear(inner, _WIDTH, bias=kind.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is not None:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        act = functional.relu if self.relu else functional.gelu
        return self.down(act(self.up(x)))


class _Experts(nn.Module):
    """Two experts compute for each token."""

    def __init__(self, kind: _Kind) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, kind.experts, bias=False)
        self.experts = nn.ModuleList(_Mlp(kind, kind.inner) for _ in range(kind.experts))
        self.shared = _Mlp(kind, kind.shared) if kind.shared else None
        self.shared_gate = nn.Linear(_WIDTH, 1, bias=False) if kind.shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights = self.router(flat).float().softmax(-1)
        best, chosen = weights.topk(2, -1)
        best = best.to(x.dtype)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            one = expert(flat[tokens]) * best[tokens, place, None]
            result = result.index_add(0, tokens, one)
        if self.shared is not None:
            result = result + self.shared(flat) * torch.sigmoid(self.shared_gate(flat))
        return result.view_as(x)


class _Layer(nn.Module):
    def __init__(self, kind: _Kind) -> None:
        super().__init__()
        self.kind = kind
        query, key = _HEADS * kind.head_width, kind.key_heads * kind.head_width
        self.q = nn.Linear(_WIDTH, query, bias=kind.bias)
        self.k = nn.Linear(_WIDTH, key, bias=kind.bias)
        self.v = nn.Linear(_WIDTH, key, bias=kind.bias)
        self.o = nn.Linear(query, _WIDTH, bias=kind.bias)
        norm = _RmsNorm if kind.rms else nn.LayerNorm
        self.norms = nn.ModuleList(norm(_WIDTH) for _ in range(4))
        self.q_norm = _RmsNorm(kind.head_width) if kind.head_norms else nn.Identity()
        self.k_norm = _RmsNorm(kind.head_width) if kind.head_norms else nn.Identity()
        self.mlp = _Experts(kind) if kind.experts else _Mlp(kind, kind.inner)
        self.drop = _dropped if kind.dropout else nn.Identity()

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        heads = (x.shape[0], x.shape[1], -1, self.kind.head_width)
        query = self.q_norm(self.q(x).view(heads)).transpose(1, 2)
        key = self.k_norm(self.k(x).view(heads)).transpose(1, 2)
        value = self.v(x).view(heads).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.drop(self.o(mixed.transpose(1, 2).reshape(*x.shape[:2], -1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.norms
        match self.kind.norms:
            case "before":
                x = x + self.attend(first(x))
                return x + self.drop(self.mlp(second(x)))
            case "parallel":
                return x + self.attend(first(x)) + self.drop(self.mlp(second(x)))
            case "after":
                x = first(x + self.attend(x))
                return second(x + self.drop(self.mlp(x)))
            case _:
                x = x + third(self.attend(first(x)))
                return x + fourth(self.mlp(second(x)))


def _saved_bytes(layer: nn.Module, dtype: torch.dtype) -> int:
    """Bytes that a forward pass saves, of all tokens."""
    torch.manual_seed(0)
    layer.to(dtype)
    # The last layer's result: a storage of its own that autograd watches.
    x = torch.randn(2, _TOKENS // 2, _WIDTH, dtype=dtype, requires_grad=True) * 1
    parameters = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    storages: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layer(x)
    assert result.requires_grad
    return sum(size for size, _ in storages.values())


def _config(model_type: str, kind: _Kind) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": _WIDTH,
        "intermediate_size": kind.inner,
        "num_hidden_layers": 3,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": kind.key_heads,
        "head_dim": kind.head_width,
        "vocab_size": 100,
        "max_position_embeddings": 128,
        "hidden_dropout_prob": 0.1 * kind.dropout,
    }
    match model_type:
        case "gpt2":
            values |= {"n_embd": _WIDTH, "n_head": _HEADS, "n_layer": 3, "n_positions": 128}
            values |= {"n_inner": kind.inner, "resid_pdrop": 0.1 * kind.dropout}
        case "opt":
            values |= {"ffn_dim": kind.inner, "dropout": 0}
        case "mixtral":
            values |= {"num_local_experts": kind.experts, "num_experts_per_tok": 2}
        case "qwen2_moe":
            values |= {"num_experts": kind.experts, "num_experts_per_tok": 2}
            values |= {"moe_intermediate_size": kind.inner}
            values |= {"shared_expert_intermediate_size": kind.shared}
    return values


_PLAIN = _Kind(rms=False, gated=False, bias=True)
_KINDS = {
    "llama": _Kind(key_heads=2),
    "qwen3": _Kind(key_heads=2, head_width=24, head_norms=True),
    "gemma2": _Kind(key_heads=1, head_width=40, norms="both"),
    "gpt2": replace(_PLAIN, dropout=True),
    "gpt_neox": replace(_PLAIN, norms="parallel"),
    "opt": replace(_PLAIN, relu=True),
    "bert": replace(_PLAIN, norms="after", dropout=True),
    "mixtral": _Kind(key_heads=2, experts=4),
    "qwen2_moe": _Kind(inner=48, experts=6, shared=80),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", _KINDS)
def test_bytes_of_a_layer(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind = _KINDS[model_type]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_config(model_type, kind)))
    options = Options(compute_type=str(dtype).removeprefix("torch."))
    block = from_config(path, options).model.blocks[1]
    saved = _saved_bytes(_Layer(kind), dtype) / _TOKENS
    # On CPUs the statistics of LayerNorm have the type of its input.
    tolerance = 0.01 if dtype == torch.bfloat16 and not kind.rms else 1e-9
    assert block.saved_bytes_per_token() == pytest.approx(saved, rel=tolerance)


class _Adapter(nn.Module):
    """A frozen matrix and its adapter."""

    def __init__(self, matrix: nn.Linear, rank: int) -> None:
        super().__init__()
        self.matrix = matrix.requires_grad_(False)
        self.narrow = nn.Linear(matrix.in_features, rank, bias=False)
        self.wide = nn.Linear(rank, matrix.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matrix(x) + self.wide(self.narrow(x)) * 2.0


@pytest.mark.parametrize("targets", [("q", "v"), ("gate", "up"), ("o", "down")], ids=str)
def test_bytes_of_a_frozen_layer_with_adapters(targets: tuple[str, ...], tmp_path: Path) -> None:
    kind = _KINDS["llama"]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_config("llama", kind)))
    layer = _Layer(kind).requires_grad_(False)
    for parent in (layer, layer.mlp):
        for name in targets:
            if isinstance(getattr(parent, name, None), nn.Linear):
                setattr(parent, name, _Adapter(getattr(parent, name), 8))
    options = Options(compute_type="float32", lora_rank=8, lora_targets=targets)
    block = from_config(path, options).model.blocks[1]
    saved = _saved_bytes(layer, torch.float32) / _TOKENS
    assert block.saved_bytes_per_token() == pytest.approx(saved)
    trained = sum(p.numel() for p in layer.parameters() if p.requires_grad)
    assert block.trained_parameters == trained


@pytest.mark.parametrize("norm", ["gpt2", "llama"])
def test_bytes_of_a_head(norm: str, tmp_path: Path) -> None:
    kind = _KINDS[norm]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_config(norm, kind)))
    block = from_config(path, Options(compute_type="bfloat16")).model.blocks[-1]

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = _RmsNorm(_WIDTH) if kind.rms else nn.LayerNorm(_WIDTH)
            self.head = nn.Linear(_WIDTH, 100, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = self.head(self.norm(x)).flatten(0, 1).float()
            return functional.cross_entropy(logits, torch.zeros(_TOKENS, dtype=torch.long))

    saved = _saved_bytes(Head(), torch.bfloat16) / _TOKENS
    assert block.saved_bytes_per_token() == pytest.approx(saved, rel=0.01)
