"""Optimizers as notes, and tensors from them (job_note.py)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._steps import MOST_NOTE_BYTES
from memtide.adopt import Adopter
from memtide.job_note import Kept, KeptOptimizer, KeptParameter, Note


class NoteWriter:
    """Makes the note of the optimizers as they are."""

    def __init__(self, adopter: Adopter, chunk_ids: Callable[[int, int], list[int]]) -> None:
        self._adopter = adopter
        self._chunk_ids = chunk_ids

    def note(self, optimizers: list[tuple[Optimizer, int]]) -> Note:
        """Of optimizers, and the steps that each has made."""
        tensors = [
            tensor
            for optimizer, _ in optimizers
            for parameter in parameters_of(optimizer)
            for tensor in (parameter, *_states(optimizer, parameter).values())
        ]
        beside = sum(t.nbytes for t in tensors if not self._adopter.manages(t))
        if beside > MOST_NOTE_BYTES:
            return Note(
                lost=f"{beside} bytes of parameters and states are not in chunks; a note has at "
                f"most {MOST_NOTE_BYTES}"
            )
        places = sorted({place for t in tensors for place in self._adopter.element_places(t)})
        rank = {place: number for number, place in enumerate(places)}
        return Note(
            self._ids(places),
            [
                KeptOptimizer(
                    type(optimizer).__name__,
                    steps,
                    [self._kept_parameter(optimizer, p, rank) for p in parameters_of(optimizer)],
                )
                for optimizer, steps in optimizers
            ],
        )

    def _ids(self, places: list[int]) -> list[int]:
        ids: list[int] = []
        start = 0
        for end in range(1, len(places) + 1):
            if end == len(places) or places[end] != places[end - 1] + 1:
                ids += self._chunk_ids(places[start], end - start)
                start = end
        return ids

    def _kept_parameter(
        self, optimizer: Optimizer, parameter: torch.Tensor, rank: dict[int, int]
    ) -> KeptParameter:
        state = optimizer.state.get(parameter, {})
        return KeptParameter(
            self._kept(parameter, rank),
            {name: self._kept(t, rank) for name, t in _states(optimizer, parameter).items()},
            {name: value for name, value in state.items() if isinstance(value, int | float)},
        )

    def _kept(self, tensor: torch.Tensor, rank: dict[int, int]) -> Kept:
        kept = Kept(list(tensor.shape), list(tensor.stride()), _type_name(tensor))
        places = self._adopter.element_places(tensor)
        if places:
            chunk_bytes = self._adopter.chunk_bytes
            within = (tensor.data_ptr() - self._adopter.base) % chunk_bytes
            kept.offset_bytes = rank[places[0]] * chunk_bytes + within
        else:
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            kept.content = base64.b64encode(flat.cpu().numpy().tobytes()).decode()
            kept.on_device = not tensor.is_cpu
        return kept


def matches(kept: Kept, tensor: torch.Tensor) -> bool:
    """Whether the tensor can take the content as it is."""
    return (
        list(tensor.shape) == kept.shape
        and _type_name(tensor) == kept.dtype
        and (kept.offset_bytes < 0 or list(tensor.stride()) == kept.stride)
    )


def type_of(kept: Kept) -> torch.dtype:
    """The elements' type."""
    found = getattr(torch, kept.dtype)
    assert isinstance(found, torch.dtype)
    return found


def small(kept: Kept, device: torch.device) -> torch.Tensor:
    """A tensor that is not in chunks: on `device`, or on the host if it was there."""
    if not kept.content:  # Which no tensor can be made from.
        found = torch.empty(kept.shape, dtype=type_of(kept))
    else:
        content = bytearray(base64.b64decode(kept.content))
        found = torch.frombuffer(content, dtype=type_of(kept)).view(kept.shape)
    return found.to(device) if kept.on_device else found


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """The parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _states(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    state = optimizer.state.get(parameter, {})
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _type_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
