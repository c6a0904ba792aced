"""Where moving or recomputing activations could go wrong, training gives plain torch's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from chosen_activations import STEPS, check, chunks, managed, same_bits, train
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional

_WIDTH = 32
_ROWS = 32  # Square: a matrix and its transpose have one shape, and one address.
Forward = Callable[..., torch.Tensor]


class Block(nn.Module):
    """Any function of itself and its arguments."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.norm: nn.Module = nn.Identity()
        self.function = function

    def forward(self, *args: Any) -> torch.Tensor:
        return self.function(self, *args)


def of_blocks(function: Forward) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleList(Block(function) for _ in range(3))


def plain(block: Block, value: torch.Tensor) -> torch.Tensor:
    return value + functional.dropout(block.linear(value).exp().tanh(), 0.3)


def chain(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    for block in model.children():
        value = block(value)
    return value.square().mean()


def inputs() -> torch.Tensor:
    return torch.randn(_ROWS, _WIDTH)


def backward(model: nn.Module) -> torch.Tensor:
    loss = chain(model, inputs())
    loss.backward()
    return loss


@pytest.fixture(params=["move", "recompute"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_dropout_drops_the_same(how: str) -> None:
    check(how, of_blocks(plain), backward)


def test_transposed_views_of_a_square_are_told_apart(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        query = block.linear(value)
        key = query.tanh()
        return (key @ key.t() * key.t().mm(key) + query.t()).tanh()

    check(how, of_blocks(function), backward)


def test_views_at_an_offset_and_with_gaps_stay_views(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        rows = block.linear(value).exp()
        return value + (rows[1:, ::2].sin() * rows[:-1, 1::2].cos()).sum()

    check(how, of_blocks(function), backward)


def test_an_address_that_is_used_again_is_another_tensor(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        for scale in range(8):
            unused = (block.linear(value) * scale).exp()  # Its graph ends with this variable.
            del unused
            value = (block.linear(value) * scale).tanh()
        return value

    check(how, of_blocks(function), backward)


def test_autocast_gives_the_cached_casts_of_the_forward_pass(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return value + block.linear(block.linear(value).tanh()).float().exp().tanh()

    def step(model: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = chain(model, inputs())
        loss.backward()
        return loss

    check(how, of_blocks(function), step)


def test_statistics_of_batch_normalization_are_updated_once(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return value + block.norm(block.linear(value)).tanh()

    def build() -> nn.Module:
        model = of_blocks(function)()
        for block in model.children():
            block.norm = nn.BatchNorm1d(_WIDTH)
        return model

    check(how, build, backward, alone="it has batch normalization in training")


def test_branches_on_data_are_taken_as_in_forward(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        if value.sum() > 0:
            return block.linear(value).tanh()
        return (block.linear(value) * value).exp().sigmoid() - 1

    def step(model: nn.Module) -> list[torch.Tensor]:
        value = inputs()
        losses = [chain(model, sign * value.abs()) for sign in (1, -1)]
        torch.stack(losses).sum().backward()
        return losses

    check(how, of_blocks(function), step)


def test_gradients_of_gradients(how: str) -> None:
    def step(model: nn.Module) -> torch.Tensor:
        value = inputs().requires_grad_()
        loss = chain(model, value)
        (slope,) = torch.autograd.grad(loss, value, create_graph=True)
        (loss + slope.square().sum()).backward()
        return loss

    check(how, of_blocks(plain), step)


def test_a_retained_graph_goes_backward_twice(how: str) -> None:
    def step(model: nn.Module) -> torch.Tensor:
        loss = chain(model, inputs())
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    check(how, of_blocks(plain), step)


def test_gradients_are_accumulated_over_micro_batches(how: str) -> None:
    def step(model: nn.Module) -> list[torch.Tensor]:
        return [backward(model), backward(model), backward(model)]

    check(how, of_blocks(plain), step)


def test_two_graphs_live_at_once(how: str) -> None:
    def step(model: nn.Module) -> list[torch.Tensor]:
        losses = [chain(model, inputs()) for _ in range(2)]
        for loss in reversed(losses):
            loss.backward()
        return losses

    check(how, of_blocks(plain), step)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_saved_tensor_hooks_of_the_script_get_what_torch_saves(how: str, where: str) -> None:
    def coarse(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.bfloat16().to(tensor.dtype)  # Gradients change by it.

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        value = block.linear(value).sin()
        if where == "inside":
            with saved_tensors_hooks(coarse, lambda tensor: tensor), save_on_cpu():
                value = value.exp().tanh()
        return value

    def step(model: nn.Module) -> torch.Tensor:
        first = chain(model[:1], inputs()).exp().tanh()
        with saved_tensors_hooks(coarse, lambda tensor: tensor):
            second = chain(model, inputs())
        (first + second + (inputs().requires_grad_() * 2).exp().sin().mean()).backward()
        return first + second

    if where == "inside":
        alone = "the script has a checkpoint or saved-tensor hooks in it"
        check(how, of_blocks(function), backward, alone=alone)
        return
    ours, expected = train(of_blocks(function), step, how), train(of_blocks(function), step)
    assert all(map(same_bits, ours.results, expected.results))


class _Saves(torch.autograd.Function):
    """Saves a tensor without bytes beside its input."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        result = value.exp()
        ctx.save_for_backward(result, shape)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        result, shape = ctx.saved_tensors
        assert shape.is_meta
        return gradient * result * len(shape), None


def test_tensors_on_another_device_than_the_chunks_stay_there(how: str) -> None:
    def function(block: Block, value: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        return _Saves.apply(block.linear(value).tanh(), shape).sin()

    def step(model: nn.Module) -> torch.Tensor:
        value = inputs()
        for block in model.children():
            value = block(value, torch.empty(64, 64, device="meta") * 1)
        loss = value.square().mean()
        loss.backward()
        return loss

    check(how, of_blocks(function), step, alone="it is on several devices")


_shown: list[torch.Tensor] = []


class _Shows(torch.autograd.Function):
    """Copies, and shows in backward what was saved: a NaN makes all gradients NaN."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _shown.append(ctx.saved_tensors[0].clone())
        return gradient


def test_nan_and_infinity_keep_their_bits(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return _Shows.apply(block.linear(value).tanh() + value).sin() + value

    def step(model: nn.Module) -> list[torch.Tensor]:
        value = inputs()
        bits = value.view(torch.int32)
        # NaN with bits of its own, infinity, a negative NaN, and a number below all normal ones.
        bits[0, 0], bits[1, 1], bits[2, 2], bits[3, 3] = 0x7FC12345, 0x7F800000, -0x3FFFFF, 1
        _shown.clear()
        loss = chain(model, value)
        loss.backward()
        return [loss, *_shown]

    check(how, of_blocks(function), step)


def test_function_transforms_run_in_a_block(how: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda each: each.sin().square().sum())(value.detach())
        rows = torch.func.vmap(lambda row: row.exp().sum())(value.tanh())
        return block.linear(value).tanh() * slope + rows

    check(how, of_blocks(function), backward, alone="the script has function transforms in it")


def test_function_transforms_that_come_after_the_rehearsal_run_in_a_block(how: str) -> None:
    step_number = [0]

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        result = block.linear(value).tanh()
        if step_number[0] == STEPS:
            slope = torch.func.grad(lambda each: each.sin().square().sum())(value.detach())
            result = functional.dropout(result * slope.exp().tanh(), 0.3)
        return result.exp()

    def step(model: nn.Module) -> torch.Tensor:
        step_number[0] = step_number[0] % STEPS + 1
        return backward(model)

    check(how, of_blocks(function), step)


def test_two_models_train_in_turns(how: str) -> None:
    def build() -> nn.Module:
        return nn.ModuleDict({name: of_blocks(plain)() for name in ("first", "second")})

    def step(model: nn.Module) -> list[torch.Tensor]:
        assert isinstance(model, nn.ModuleDict)
        losses = [backward(model["first"]), backward(model["second"])]
        optimizer = torch.optim.SGD(model["second"].parameters(), lr=0.1)
        optimizer.step()  # An iteration of its own ends here.
        return losses

    check(how, build, step)


def test_a_graph_outlives_iterations(how: str) -> None:
    graphs: list[torch.Tensor] = []

    def step(model: nn.Module) -> list[torch.Tensor]:
        losses = [backward(model)]
        other = nn.Linear(_WIDTH, _WIDTH)
        other(inputs()).exp().sum().backward()
        # The graph's leaf and blocks are not changed before its backward pass in the next step.
        leaf = inputs().requires_grad_()
        blocks = [Block(plain) for _ in range(3)]
        value = leaf
        for block in blocks:
            value = block(value)
        losses += [graph for graph in graphs]
        while graphs:
            (slope,) = torch.autograd.grad(graphs.pop(), roots.pop())
            losses.append(slope)
        graphs.append(value.square().mean())
        roots.append(leaf)
        steps.append(1)
        if len(steps) == STEPS:
            graphs.clear()
            roots.clear()
            steps.clear()
        return losses

    roots: list[torch.Tensor] = []
    steps: list[int] = []
    check(how, of_blocks(plain), step)


@pytest.mark.parametrize("without", range(STEPS))
def test_an_iteration_without_backward_leaves_nothing(how: str, without: int) -> None:
    count = 0

    def step(model: nn.Module) -> torch.Tensor:
        nonlocal count
        count += 1
        if (count - 1) % STEPS != without:
            return backward(model)
        return chain(model, inputs()).detach()

    ours, expected = train(of_blocks(plain), step, how), train(of_blocks(plain), step)
    assert all(map(same_bits, ours.results, expected.results))
    assert ours.moved_bytes


class Refused(Exception):
    """An error of the script's own."""


@pytest.mark.parametrize("at", range(STEPS))
def test_an_error_in_a_forward_pass_leaves_nothing(how: str, at: int) -> None:
    count = 0

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        value = plain(block, value)
        if (value > 1e6).any():
            raise Refused
        return value

    def step(model: nn.Module) -> torch.Tensor:
        nonlocal count
        count += 1
        errors = []
        if (count - 1) % STEPS == at:
            value = inputs()
            value[0, 0] = 2e6
            try:
                chain(model, value)
            except Refused as error:
                errors.append(error)  # It is held while training goes on, as a debugger does.
            assert errors
            del value
        loss = backward(model)
        errors.clear()
        return loss

    ours, expected = train(of_blocks(function), step, how), train(of_blocks(function), step)
    assert all(map(same_bits, ours.results, expected.results))
    assert ours.moved_bytes


def test_an_error_in_a_recomputation_is_the_script_s_and_leaves_nothing() -> None:
    raising = False

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        if raising:
            raise Refused("in backward")
        return plain(block, value)

    torch.manual_seed(0)
    model = of_blocks(function)()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with managed(model, "recompute", allowed_bytes=0) as activations:
        for _ in range(2):
            backward(model)
            optimizer.step()
        for _ in range(2):
            loss = chain(model, inputs())
            raising = True
            with torch.autocast("cpu", torch.bfloat16), pytest.raises(Refused, match="in backward"):
                loss.backward()
            raising = False
            del loss
            assert not torch.is_autocast_enabled("cpu")
            assert torch._C._len_torch_dispatch_stack() == 0
            optimizer.zero_grad()
        torch.manual_seed(3)
        ours = [backward(model), *(p.grad for p in model.parameters() if p.grad is not None)]
        optimizer.zero_grad()
        assert activations.kept_bytes == 0 and chunks() == 0
        assert activations.as_json()["recomputed_blocks"] == 3
    torch.manual_seed(3)
    expected = [backward(model), *(p.grad for p in model.parameters() if p.grad is not None)]
    assert all(map(same_bits, ours, expected))
