"""A Model of the modules whose parameters an optimizer has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from memtide._plan_file.model import Block, Model

from memtide_plan.models.modules.forward import ForwardPass, Seen, tensors_in
from memtide_plan.models.modules.rows import Part

_INTEGERS = (torch.int64, torch.int32)
_LOSS_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Batch:
    """The input of a forward pass."""

    batch: int
    sequence: int  # 1: samples have no tokens that are seen.
    has_tokens: bool

    @classmethod
    def of(cls, arguments: Any) -> Batch | None:
        """The batch of a model's arguments: numbers of tokens in two dimensions, or else samples
        in the first dimension of the first tensor. None: there is no tensor."""
        tensors = [tensor for tensor in tensors_in(arguments) if tensor.dim()]
        for tensor in tensors:
            if tensor.dtype in _INTEGERS and tensor.dim() == 2:
                return cls(tensor.shape[0], tensor.shape[1], True)
        return cls(tensors[0].shape[0], 1, False) if tensors else None

    def tokens(self) -> int:
        """Tokens of the batch, or samples."""
        return max(1, self.batch * self.sequence)


def parameters_alone(name: str, parts: Sequence[Part]) -> Model:
    """A model whose forward pass was not seen: two operations for each parameter and token, and no
    bytes that are saved."""
    return Model(name=name, blocks=tuple(_blocks(parts, lambda row: _operations(row))))


def model(name: str, parts: Sequence[Part], seen: ForwardPass, batch: Batch) -> Model:
    """A model whose forward pass was seen. The tensor that the loss saves of an output that is not
    one number counts as the head's: a softmax in float32."""
    parts_seen = dict(seen.parts)
    outputs = [tensor for tensor in tensors_in(seen.output) if tensor.dim()]
    is_loss = any(not tensor.dim() for tensor in tensors_in(seen.output))
    if outputs and not is_loss and batch.has_tokens:
        last = parts_seen.setdefault(id(parts[-1]), Seen())
        last.rest_bytes += outputs[0].numel() * _LOSS_ELEMENT_BYTES

    def measured(row: Sequence[Part]) -> dict[str, Any]:
        return _measured([parts_seen.get(id(part), Seen()) for part in row], batch)

    return Model(
        name=name,
        blocks=tuple(_blocks(parts, measured)),
        # Attention that a script has written by itself computes what its mask removes, too.
        causal=batch.has_tokens and bool(seen.is_causal),
    )


def _blocks(parts: Sequence[Part], measure: Any) -> Iterator[Block]:
    for kind, row in groupby(parts, lambda part: part.kind or part.name):
        alike = list(row)
        values = measure(alike)
        if not alike[0].parameters and not any(values.values()):
            continue
        name = alike[0].name
        yield Block(
            name=(kind[0].rstrip(".") if len(alike) > 1 else name) or "layers",
            count=len(alike),
            parameters=alike[0].parameters,
            trained_parameters=round(sum(part.trained for part in alike) / len(alike)),
            recomputable=alike[0].module is not None,
            **values,
        )


def _operations(row: Sequence[Part]) -> dict[str, Any]:
    # A table that is looked up computes nothing.
    flop = 0 if row[0].name == "embedding" else 2 * row[0].parameters
    return {"flop_per_token": flop, "input_bytes_per_token": 0.0}


def _measured(row: Sequence[Seen], batch: Batch) -> dict[str, Any]:
    """The mean of a row. Where samples have no tokens, a sample is one, with its attention."""
    each = len(row) * batch.tokens()
    pair = sum(seen.pair_flop for seen in row) / each
    flop = sum(seen.matrix_flop for seen in row) / each
    return {
        "flop_per_token": flop if batch.has_tokens else flop + pair,
        "flop_per_token_pair": pair / batch.sequence if batch.has_tokens else 0.0,
        "input_bytes_per_token": sum(seen.input_bytes for seen in row) / each,
        "attention_bytes_per_token": sum(seen.attention_bytes for seen in row) / each,
        "rest_bytes_per_token": sum(seen.rest_bytes for seen in row) / each,
    }
