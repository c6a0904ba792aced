"""Measures the layers of a model for `plan`."""

from __future__ import annotations

import time

import torch
from memtide.errors import InvalidArgument
from memtide_plan.pipelines.inputs import Layer, Seconds
from torch import nn

_ROUNDS = 3


def measured_layers(
    model: nn.Sequential, inputs: torch.Tensor, *, states: int = 2, rounds: int = _ROUNDS
) -> list[Layer]:
    """Runs each layer forward and backward with one sample and with all of `inputs`, whose first
    dimension is that of samples, two or more. The shortest of `rounds` times of each tell what a
    call takes and what a sample does. `states`: tensors that the optimizer has for each parameter;
    AdamW has two. Runs on the CPU; gradients of the parameters are cleared.
    """
    if len(inputs) < 2 or rounds < 1:
        raise InvalidArgument(
            f"{len(inputs)} samples in {rounds} rounds do not tell what a sample takes; give two "
            "samples or more, and one round or more"
        )
    measured = []
    for name, layer in model.named_children():
        timed = [_shortest(layer, rows, rounds) for rows in (inputs[:1], inputs)]
        seconds = [_seconds(one, full, len(inputs)) for one, full in zip(*timed, strict=True)]
        output, saved_bytes = _saved(layer, inputs)
        weights = sum(parameter.nbytes for parameter in layer.parameters())
        trained = sum(p.nbytes for p in layer.parameters() if p.requires_grad)
        measured.append(
            Layer(
                name=name,
                forward=seconds[0],
                backward=seconds[1],
                weight_bytes=weights,
                gradient_bytes=trained,
                state_bytes=states * trained,
                activation_bytes=saved_bytes / len(inputs),
                output_bytes=output.nbytes / len(inputs),
            )
        )
        layer.zero_grad()
        inputs = output
    return measured


def _shortest(layer: nn.Module, inputs: torch.Tensor, rounds: int) -> tuple[float, float]:
    """Seconds of the forward pass, and of the backward pass."""
    times = []
    for _ in range(rounds + 1):  # The first one makes what later ones find.
        rows = _input(inputs)
        began = time.perf_counter()
        output = layer(rows)
        computed = time.perf_counter()
        if output.requires_grad:
            output.backward(torch.ones_like(output))
        times.append((computed - began, time.perf_counter() - computed))
    forward, backward = zip(*times[1:], strict=True)
    return min(forward), min(backward)


def _seconds(one_s: float, all_s: float, samples: int) -> Seconds:
    """The line through both times; neither part is negative."""
    per_sample_s = max(0.0, (all_s - one_s) / (samples - 1))
    return Seconds(per_sample_s, max(0.0, one_s - per_sample_s))


def _saved(layer: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The output, and the bytes that autograd saves beside the parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    storages: dict[int, int] = {}
    held = []

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)  # Its address must not be that of a later tensor.
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = layer(_input(inputs))
    return output.detach(), sum(storages.values())


def _input(inputs: torch.Tensor) -> torch.Tensor:
    return inputs.detach().requires_grad_(inputs.is_floating_point())
