"""Recomputed blocks have the losses and gradients of blocks that are not, to the bit."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from memtide._activations.recompute import Mode, Recompute
from recomputed_blocks import Lambda, backward, blocks, chain, check, moved
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

_WIDTH = 16
_hooks = torch._C._autograd


def test_dropout_drops_the_same(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    check(recompute, mode, value)


def test_autocast_is_restored(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = chain(model, value)
        loss.backward()
        return loss

    check(recompute, mode, value, step)


def test_settings_of_the_forward_pass_are_restored(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        key, rows = block.linear(value)[None], value[None]
        mixed = functional.scaled_dot_product_attention(rows, key, rows)[0]
        return mixed * torch.full((), 1.1)  # It has the default type.

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                loss = chain(model, value)
        finally:
            torch.set_default_dtype(torch.float32)
        loss.backward()
        return loss

    check(recompute, mode, value, step, function)
    assert torch.get_default_dtype() is torch.float32


def test_branches_on_data_are_taken_again(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        return block.linear(value).tanh() if value.sum() > 0 else block.linear(value).exp()

    check(recompute, mode, value, function=function)


def test_gradients_of_gradients(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        return torch.tanh(block.linear(value)) * value.sin()

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        loss = chain(model, value.requires_grad_())
        (penalty,) = torch.autograd.grad(loss, value, create_graph=True)
        (loss + penalty.square().sum()).backward()
        return loss

    check(recompute, mode, value, step, function)


def test_a_graph_that_is_retained_goes_backward_twice(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        loss = chain(model, value)
        parts = torch.autograd.grad(loss, list(model[2].parameters()), retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss + sum(part.sum() for part in parts)

    check(recompute, mode, value, step)


def test_a_linear_layer_s_output_may_change_in_place(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        result = block.linear(value)
        result += functional.dropout(value, 0.5) * 0.5  # As PEFT's layers do.
        return result

    check(recompute, mode, value, function=function)


def test_arguments_of_many_kinds(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    def function(block: Lambda, *, inputs: dict[str, Any], seen: list[Any]) -> Any:
        first, (second, nothing) = inputs["first"], inputs["rest"]
        seen.append(first)
        same = 2.0 if first is second and nothing is None else 3.0
        return {"out": ((block.linear(first) * first.sin() * same * len(seen)).sin(), None)}

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        seen: list[Any] = []
        with moved():
            for block in model:
                value = block(inputs={"first": value, "rest": (value, None)}, seen=seen)["out"][0]
        loss = value.tanh().mean()
        loss.backward()
        assert len(seen) == len(model)
        return loss

    check(recompute, mode, value, step, function)


def test_an_argument_that_a_block_may_change_is_not_given_twice(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    class Cache:
        count = 0

    def function(block: Lambda, value: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.count += 1
        return block.linear(value).exp() * cache.count

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        cache = Cache()
        loss = model[1](model[0](value, cache), cache).mean()
        loss.backward()
        return loss

    check(recompute, mode, value, step, function, recomputed=False)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_of_the_script_s_own_is_not_doubled(
    use_reentrant: bool, recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        value.requires_grad_()
        for block in model:
            value = checkpoint(block, value, use_reentrant=use_reentrant)
        loss = value.square().mean()
        loss.backward()
        assert [block.calls for block in model] == [2, 2, 2]
        return loss

    check(recompute, mode, value, step, recomputed=False)


def test_saved_tensor_hooks_of_the_script_s_own_see_all(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def coarse(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.bfloat16().to(tensor.dtype)  # Gradients change by it.

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(coarse, lambda tensor: tensor):
            loss = chain(model, value)
        loss.backward()
        return loss

    check(recompute, mode, value, step, recomputed=False)


def test_hooks_of_the_script_s_own_are_called_once(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        calls = []
        for block in model:
            block.wide.register_forward_hook(lambda *_: calls.append(1))
        loss = backward(model, value)
        assert len(calls) == 3
        return loss

    check(recompute, mode, value, step, recomputed=False)


def test_global_hooks_of_the_script_s_own_are_called_once(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        calls = []
        handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
        loss = backward(model, value)
        handle.remove()
        assert len(calls) == 15
        return loss

    check(recompute, mode, value, step, recomputed=False)


def test_modes_of_the_script_s_own_see_each_operation_once(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.gelu.default else result

    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        with Double():
            loss = chain(model, value)
        loss.backward()
        return loss

    check(recompute, mode, value, step, recomputed=False)


def test_another_state_than_was_planned_runs_as_it_is(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        model.eval()
        return backward(model, value)

    check(recompute, mode, value, step, recomputed=False)


def test_function_transforms_run(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    model = blocks().eval()
    recompute.plan(dict.fromkeys(model, mode))
    gradient = torch.func.grad(lambda value: chain(model, value))(value)
    other = value.clone().requires_grad_()
    chain(model, other).backward()
    assert torch.equal(gradient, other.grad)


def test_micro_batches_and_an_evaluation_between_them(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def step(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
        first = backward(model, value)
        with torch.no_grad():
            middle = chain(model, value)
        return first + middle + backward(model, value * 2)

    check(recompute, mode, value, step)


def test_an_error_of_a_block_leaves_nothing_set(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    def function(block: Lambda, value: torch.Tensor) -> torch.Tensor:
        raise KeyError("of the block")

    model = blocks(function)
    recompute.plan(dict.fromkeys(model, mode))
    with pytest.raises(KeyError, match="of the block") as raised:
        model[0](value)
    # While somebody holds the error.
    assert _hooks._top_saved_tensors_default_hooks(False) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    del raised


def test_a_parameter_that_changes_before_backward_is_noticed(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    model = blocks()
    recompute.plan(dict.fromkeys(model, mode))
    loss = chain(model, value)
    with torch.no_grad():
        model[1].wide.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nan_trains_on(recompute: Recompute, mode: Mode, value: torch.Tensor) -> None:
    value[0, 0, 0] = float("nan")
    model = blocks()
    recompute.plan(dict.fromkeys(model, mode))
    assert backward(model, value).isnan()


def test_inputs_live_no_longer_than_autograd_keeps_them(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    model = blocks()
    recompute.plan(dict.fromkeys(model, mode))
    inner = value.clone().requires_grad_()
    before = sys.getrefcount(inner)
    loss = chain(model, inner)
    loss.backward()
    del loss
    gc.collect()
    assert sys.getrefcount(inner) == before


def test_a_call_holds_its_input_through_the_hooks_alone(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    model = blocks()
    recompute.plan(dict.fromkeys(model, mode))
    with moved():
        inner = model[0](value)
        source = weakref.ref(inner)
        loss = model[1](inner).sum()
    del inner
    gc.collect()
    assert source() is None
    loss.backward()


def test_a_plan_replaces_the_one_before(
    recompute: Recompute, mode: Mode, value: torch.Tensor
) -> None:
    model = blocks()
    recompute.plan({model[0]: mode})
    recompute.plan({model[1]: mode})
    backward(model, value)
    assert [block.calls for block in model] == [1, 2, 1]
