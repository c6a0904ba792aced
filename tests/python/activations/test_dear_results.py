"""Dear results of a recomputed block are kept, and the rest is as without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memtide._activations import dear_results
from memtide._activations.recompute import Mode, Recompute
from recomputed_blocks import Lambda, blocks, chain, check
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

_hooks = torch._C._autograd
packed: list[torch.Tensor] = []


def pack(tensor: torch.Tensor) -> torch.Tensor:
    packed.append(tensor.detach())
    return packed[-1]


def unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def test_a_dear_result_that_the_block_changes_is_computed_again(
    recompute: Recompute, mode: Mode, value: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear_results, "DEAR", {torch.ops.aten.addmm.default})

    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        result = block.linear(value)
        result += value * 0.5
        return result.sin()

    check(recompute, mode, value, function=function)


def test_generators_go_on_behind_a_dear_result(
    recompute: Recompute, value: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear_results, "DEAR", {torch.ops.aten.native_dropout.default})

    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        dropped, _ = torch.native_dropout(block.linear(value), 0.5, True)
        return functional.dropout(dropped.sin(), 0.5).exp()

    check(recompute, Mode.REST, value, function=function)


def test_dear_results_are_not_computed_again_and_pass_memtide_s_hooks(
    recompute: Recompute, value: torch.Tensor
) -> None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    names = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, *args: Any) -> Any:
            names.append(func)
            return func(*args[1], **args[2])

    Count.__module__ = pack.__module__ = "memtide.test"
    model = blocks()
    recompute.plan(dict.fromkeys(model, Mode.REST))
    _hooks._push_saved_tensors_default_hooks(pack, unpack)
    try:
        with Count():
            loss = chain(model, value)
            loss.backward(retain_graph=True)
            loss.backward()
    finally:
        _hooks._pop_saved_tensors_default_hooks()
    assert loss.isfinite() and names.count(kernel) == 3
    outputs = [tensor for tensor in packed if tensor.shape == (3, 2, 5, 8)]
    assert len(outputs) == 3
    packed.clear()
