"""Host memory: how fast all cores copy it, how fast one does, and how fast an optimizer steps."""

from __future__ import annotations

import torch

from memtide_plan.measure.repeated import Rate, rate_of

# Larger than the caches of a processor together.
_COPIED_BYTES = 256 * 2**20
_STEPPED_ELEMENTS = 16 * 2**20
_TENSOR_ELEMENTS = 4 * 2**20
_FP32_BYTES = 4
# AdamW reads weight, gradient and two moments, and writes all but the gradient.
_ACCESSES_OF_ADAMW = 7


def copy_rate(seconds: float) -> Rate:
    """Bytes that a copy on all cores reads and writes in a second."""
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)

    def copy() -> float:
        target.copy_(source)
        return 2.0 * _COPIED_BYTES

    return rate_of(copy, seconds)


def optimizer_rate(seconds: float) -> Rate:
    """Bytes that torch's AdamW reads and writes in a second while it steps fp32 parameters in host
    memory, as memtide has it do there. Each value counts once for each time that the rule needs to
    read or to write it."""
    count = _STEPPED_ELEMENTS // _TENSOR_ELEMENTS
    parameters = [torch.nn.Parameter(torch.zeros(_TENSOR_ELEMENTS)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.AdamW(parameters)

    def step() -> float:
        optimizer.step()
        return float(_ACCESSES_OF_ADAMW * _FP32_BYTES * _STEPPED_ELEMENTS)

    return rate_of(step, seconds)
