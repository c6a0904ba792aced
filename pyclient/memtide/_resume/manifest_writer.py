"""Writes optimizers to step manifests, and makes tensors from these (_resume/step_manifest.py)."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._memory.managed_memory import ManagedMemory
from memtide._resume.step_manifest import SavedOptimizer, SavedParameter, SavedTensor, StepManifest


class ManifestWriter:
    """Describes optimizers, with their present parameters and states, in a step manifest."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._addresses = memory.addresses
        self._chunk_ids = memory.client.chunk_ids
        self._most_bytes = memory.client.limits.step_manifest_bytes

    def manifest(self, optimizers: list[tuple[Optimizer, int]]) -> StepManifest:
        """The manifest of these optimizers, each with the number of steps that it has made."""
        tensors = [
            tensor
            for optimizer, _ in optimizers
            for parameter in parameters_of(optimizer)
            for tensor in (parameter, *_states(optimizer, parameter).values())
        ]
        beside = sum(t.nbytes for t in tensors if not self._addresses.manages(t))
        if beside > self._most_bytes:
            return StepManifest(
                lost=f"{beside} bytes of parameters and states are not in chunks; a manifest has "
                f"at most {self._most_bytes}"
            )
        places = sorted({place for t in tensors for place in self._addresses.element_places(t)})
        rank = {place: number for number, place in enumerate(places)}
        return StepManifest(
            self._ids(places),
            [
                SavedOptimizer(
                    type(optimizer).__name__,
                    steps,
                    [self._saved_parameter(optimizer, p, rank) for p in parameters_of(optimizer)],
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

    def _saved_parameter(
        self, optimizer: Optimizer, parameter: torch.Tensor, rank: dict[int, int]
    ) -> SavedParameter:
        state = optimizer.state.get(parameter, {})
        return SavedParameter(
            self._saved_tensor(parameter, rank),
            {
                name: self._saved_tensor(t, rank)
                for name, t in _states(optimizer, parameter).items()
            },
            {name: value for name, value in state.items() if isinstance(value, int | float)},
        )

    def _saved_tensor(self, tensor: torch.Tensor, rank: dict[int, int]) -> SavedTensor:
        saved = SavedTensor(list(tensor.shape), list(tensor.stride()), _type_name(tensor))
        places = self._addresses.element_places(tensor)
        if places:
            chunk_bytes = self._addresses.chunk_bytes
            within = (tensor.data_ptr() - self._addresses.base) % chunk_bytes
            saved.offset_bytes = rank[places[0]] * chunk_bytes + within
        else:
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            saved.content = base64.b64encode(flat.cpu().numpy().tobytes()).decode()
            saved.on_device = not tensor.is_cpu
        return saved


def matches(saved: SavedTensor, tensor: torch.Tensor) -> bool:
    """Whether the saved content has the tensor's shape, type and layout."""
    return (
        list(tensor.shape) == saved.shape
        and _type_name(tensor) == saved.dtype
        and (saved.offset_bytes < 0 or list(tensor.stride()) == saved.stride)
    )


def type_of(saved: SavedTensor) -> torch.dtype:
    """The type of the saved elements."""
    dtype = getattr(torch, saved.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def small(saved: SavedTensor, device: torch.device) -> torch.Tensor:
    """A new tensor from saved content that is not in chunks: on `device`, or on the host if it was
    there."""
    if not saved.content:  # torch.frombuffer refuses an empty buffer.
        tensor = torch.empty(saved.shape, dtype=type_of(saved))
    else:
        content = bytearray(base64.b64decode(saved.content))
        tensor = torch.frombuffer(content, dtype=type_of(saved)).view(saved.shape)
    return tensor.to(device) if saved.on_device else tensor


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """The parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _states(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    state = optimizer.state.get(parameter, {})
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _type_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
