"""The rehearsal says which blocks cannot be recomputed exactly, and changes no result.

Blocks that note things in a list of an object outside, named `deep`, can run twice: the list is
deeper than effects are looked for.
"""

from __future__ import annotations

import copy
import gc
import random
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from memtide._activations.rehearsal import Rehearsal, Rehearsed
from memtide._activations.two_runs import FirstRun
from memtide._torch_hooks.patching.attributes import Attributes
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import CheckpointFunction, checkpoint

_WIDTH = 8
_RAN_TWICE = "Block did not run alike when it ran twice"
Forward = Callable[..., Any]


class Block(nn.Module):
    """A block of any function of itself and its input."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.BatchNorm1d(_WIDTH).eval()
        self.register_buffer("count", torch.zeros(1))
        self.function = function
        self.number = 0
        self.seen: list[Any] = []

    def forward(self, value: torch.Tensor, *args: Any) -> Any:
        return self.function(self, value, *args)


@pytest.fixture
def rehearsal() -> Iterator[Rehearsal]:
    before = saved_tensors_hooks.__enter__, vars(CheckpointFunction)["forward"]
    yield Rehearsal(Attributes(), make_room=lambda _size_bytes: None)
    assert (saved_tensors_hooks.__enter__, vars(CheckpointFunction)["forward"]) == before
    assert "_call_impl" not in vars(Block)


def step(block: Block, *args: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    value = torch.randn(3, _WIDTH, requires_grad=True)
    output = block(value.sin(), *args)
    if output.requires_grad:
        output.square().mean().backward()
    gradients = [p.grad for p in block.parameters() if p.grad is not None]
    return [output, *gradients, *block.buffers(), torch.get_rng_state()]


def rehearse(rehearsal: Rehearsal, function: Forward, *args: Any) -> Rehearsed:
    """Rehearses a step, which must be what it is without."""
    torch.manual_seed(0)
    block = Block(function)
    expected = step(copy.deepcopy(block), *args)
    rehearsal.open([block])
    ours = step(block, *args)
    assert len(ours) == len(expected) and all(map(torch.equal, ours, expected))
    return rehearsal.close()[block]


def test_dropout_and_attention_can_be_recomputed(rehearsal: Rehearsal) -> None:
    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        rows = block.linear(value).view(1, 1, 3, _WIDTH)
        mixed = functional.scaled_dot_product_attention(rows, rows, rows).view(3, _WIDTH)
        return functional.dropout(mixed, 0.5).exp()

    known = rehearse(rehearsal, forward)
    assert known.reason is None and known.forward_s > 0
    row = 4 * _WIDTH
    assert known.input_bytes == 3 * row and known.dear_bytes == 3 * row + 12
    assert known.saved_bytes > known.input_bytes + known.dear_bytes


def test_a_block_that_is_not_called_is_not_known(rehearsal: Rehearsal) -> None:
    block = Block(lambda block, value: value)
    rehearsal.open([block])
    assert "not called" in (rehearsal.close()[block].reason or "")


class Twice(torch.autograd.Function):
    """Asks for what it saved twice, as many do."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert ctx.saved_tensors[0].shape == ctx.saved_tensors[0].shape
        return gradient * 2


def norm(block: Block, value: torch.Tensor) -> torch.Tensor:
    block.norm.train()
    return block.norm(value)


def running(block: Block, value: torch.Tensor) -> torch.Tensor:
    stats = block.norm.running_mean, block.norm.running_var
    return functional.batch_norm(block.linear(value), *stats, training=True)  # No version changes.


def buffer(block: Block, value: torch.Tensor) -> torch.Tensor:
    block.count += 1
    return block.linear(value)


def counter(block: Block, value: torch.Tensor) -> torch.Tensor:
    block.number += 1
    return block.linear(value)


def listing(block: Block, value: torch.Tensor) -> torch.Tensor:
    block.seen.append(1)
    return block.linear(value)


def draws(block: Block, value: torch.Tensor) -> torch.Tensor:
    return block.linear(value) * random.random()


def draws_numpy(block: Block, value: torch.Tensor) -> torch.Tensor:
    return block.linear(value) * float(numpy.random.random())


def in_place(block: Block, value: torch.Tensor) -> torch.Tensor:
    value.mul_(2)
    return block.linear(value.sin())


def view(block: Block, value: torch.Tensor) -> torch.Tensor:
    return value.view(-1)


def weight(block: Block, value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        block.linear.weight.clamp_(-0.1, 0.1)
    return block.linear(value)


def own_checkpoint(block: Block, value: torch.Tensor) -> Any:
    return checkpoint(block.linear, value, use_reentrant=False)


def own_reentrant_checkpoint(block: Block, value: torch.Tensor) -> Any:
    return checkpoint(block.linear, value, use_reentrant=True)


def own_hooks(block: Block, value: torch.Tensor) -> torch.Tensor:
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return block.linear(value)


def twice(block: Block, value: torch.Tensor) -> Any:
    return Twice.apply(block.linear(value))


@pytest.mark.parametrize(
    "forward, reason",
    [
        (running, "changes buffers"),
        (buffer, "changes buffers"),
        (counter, "attributes"),
        (listing, "attributes"),
        (in_place, "input in place"),
        (view, "a view of its input"),
        (weight, "changes parameters"),
        (own_checkpoint, "checkpoint"),
        (own_reentrant_checkpoint, "checkpoint"),
        (own_hooks, "checkpoint or saved-tensor hooks"),
        (twice, "asked for twice"),
    ],
)
def test_a_block_with_effects_is_left_alone(
    forward: Forward, reason: str, rehearsal: Rehearsal
) -> None:
    assert reason in (rehearse(rehearsal, forward).reason or "")


@pytest.mark.parametrize("forward, reason", [(draws, "Python's"), (draws_numpy, "NumPy's")])
def test_a_block_that_draws_otherwise_is_left_alone(
    forward: Forward, reason: str, rehearsal: Rehearsal
) -> None:
    def seeded(block: Block, value: torch.Tensor, state: list[int]) -> torch.Tensor:
        return forward(block, value)

    random.seed(3)
    numpy.random.seed(3)
    block = Block(seeded)
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH), [1])
    assert reason in (rehearsal.close()[block].reason or "")
    ours = random.random(), numpy.random.random()
    random.seed(3)
    numpy.random.seed(3)
    block(torch.ones(3, _WIDTH), [1])
    assert (random.random(), numpy.random.random()) == ours


def test_batch_normalization_in_training_is_left_alone(rehearsal: Rehearsal) -> None:
    block = Block(norm)
    block.norm.train()
    rehearsal.open([block])
    block(torch.randn(3, _WIDTH))
    assert "batch normalization" in (rehearsal.close()[block].reason or "")
    assert block.norm.num_batches_tracked == 1


def deep(value: Any) -> Any:
    """The value where effects are not looked for."""
    return SimpleNamespace(holder=SimpleNamespace(value=value))


def test_a_block_that_differs_each_time_is_left_alone_and_the_run_says_so(
    rehearsal: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = deep(iter(range(100)))

    def output(block: Block, value: torch.Tensor) -> torch.Tensor:
        return block.linear(value) * next(numbers.holder.value)

    block = Block(output)
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH))
    assert "differs" in (rehearsal.close()[block].reason or "")
    assert _RAN_TWICE in capsys.readouterr().err


def test_a_block_that_saves_something_else_each_time_is_left_alone_and_the_run_says_so(
    rehearsal: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = deep(iter(range(1, 100)))

    def saves(block: Block, value: torch.Tensor) -> torch.Tensor:
        return block.linear(value) * torch.full((3, 1), next(numbers.holder.value)).sign().mul(
            next(numbers.holder.value)
        )

    def saves_signs(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * torch.full((3, 1), float(next(numbers.holder.value)))).clamp(
            0, 0
        )

    for function in (saves, saves_signs):
        block = Block(function)
        rehearsal.open([block])
        block(torch.ones(3, _WIDTH))
        assert "differs" in (rehearsal.close()[block].reason or "")
    assert capsys.readouterr().err.count(_RAN_TWICE) == 1


def test_the_second_run_keeps_nothing_that_autograd_would_save(rehearsal: Rehearsal) -> None:
    deep = SimpleNamespace(alive=[])

    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        inner = block.linear(value)
        saved = StorageWeakRef(inner.untyped_storage())
        outer = inner.sin()  # Autograd saves `inner`.
        del inner
        deep.alive.append(not saved.expired())
        return outer

    block = Block(forward)
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH)).sum().backward()
    assert deep.alive == [True, False]
    assert rehearsal.close()[block].reason is None


def test_what_the_first_run_saved_is_compared_where_it_is_now(rehearsal: Rehearsal) -> None:
    packs: Any = deep([])

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        packs.holder.value.append(tensor.detach().clone())
        return packs.holder.value[-1]

    moved.__module__ = "memtide.testing"  # Hooks of a script's own keep a block from a rehearsal.
    for wrong, reason in ((False, None), (True, "differs")):
        block = Block(lambda block, value: block.linear(value).sin())
        rehearsal.open([block])
        torch._C._autograd._push_saved_tensors_default_hooks(
            moved, lambda tensor, wrong=wrong: tensor + 1 if wrong else tensor
        )
        block(torch.ones(3, _WIDTH))
        torch._C._autograd._pop_saved_tensors_default_hooks()
        known = rehearsal.close()[block]
        assert known.reason is None if reason is None else reason in (known.reason or "")
        row = 4 * _WIDTH
        assert known.saved_bytes == 2 * 3 * row, "each storage once, though none of them stays"


def test_a_block_that_cannot_run_twice_runs_once_and_the_run_says_so(
    rehearsal: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = SimpleNamespace(left=[1.0])

    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(block.linear(value) * deep.left.pop())

    block = Block(forward)
    rehearsal.open([block])
    torch.manual_seed(4)
    assert block(torch.ones(3, _WIDTH)).isfinite().all()
    ours = torch.get_rng_state()
    torch.manual_seed(4)
    functional.dropout(torch.ones(3, _WIDTH))
    assert torch.equal(ours, torch.get_rng_state())
    assert "IndexError" in (rehearsal.close()[block].reason or "")
    assert _RAN_TWICE in capsys.readouterr().err


def test_an_effect_of_the_second_run_alone_is_seen(rehearsal: Rehearsal) -> None:
    deep = SimpleNamespace(runs=[])

    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        deep.runs.append(1)
        if len(deep.runs) > 1:
            block.number += 1
        return block.linear(value)

    block = Block(forward)
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH))
    assert "attributes" in (rehearsal.close()[block].reason or "")


def test_a_block_of_which_nothing_is_saved_is_left_alone(rehearsal: Rehearsal) -> None:
    block = Block(lambda block, value: block.linear(value)).requires_grad_(False)
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH))
    assert "saves nothing" in (rehearsal.close()[block].reason or "")


def test_a_graph_without_backward_is_freed(rehearsal: Rehearsal) -> None:
    block = Block(lambda block, value: block.linear(value).exp())
    rehearsal.open([block])
    output = weakref.ref(block(torch.ones(3, _WIDTH)))  # Its node saves it.
    gc.collect()
    assert output() is None
    rehearsal.close()


def test_nan_is_the_same_as_nan(rehearsal: Rehearsal) -> None:
    block = Block(lambda block, value: block.linear(value) * float("nan"))
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH)).sum().backward()
    assert rehearsal.close()[block].reason is None


def test_an_input_that_changes_after_the_call_is_seen(rehearsal: Rehearsal) -> None:
    block = Block(lambda block, value: block.linear(value * 2))
    rehearsal.open([block])
    value = torch.ones(3, _WIDTH, requires_grad=True).sin()
    output = block(value)
    value += 1  # Nothing has saved it.
    (output.sum() + value.sum()).backward()
    assert "changed in place before backward" in (rehearsal.close()[block].reason or "")


def test_what_a_block_changes_in_place_after_saving_it_is_torch_s_error(
    rehearsal: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    block = Block(lambda block, value: block.linear(value).exp().add_(1))
    rehearsal.open([block])
    output = block(torch.ones(3, _WIDTH))
    assert "changes in place what autograd has saved" in (
        rehearsal._notes[block].result.reason or ""
    )
    assert not capsys.readouterr().err
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    rehearsal.close()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (object(), "an argument is a object"),
        (torch.nested.nested_tensor([torch.ones(2)]), "a tensor that is not dense"),
        (torch.ones(2).to_sparse(), "a tensor that is not dense"),
    ],
    ids=["object", "nested", "sparse"],
)
def test_an_argument_that_it_may_change_is_named(
    rehearsal: Rehearsal, other: object, named: str
) -> None:
    block = Block(lambda block, value, other: block.linear(value))
    rehearsal.open([block])
    block(torch.ones(3, _WIDTH), other)
    assert named in (rehearsal.close()[block].reason or "")


def test_the_time_of_a_block_is_without_that_of_comparing(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now: Any = SimpleNamespace(deep=SimpleNamespace(seconds=0.0))
    monkeypatch.setattr(time, "monotonic", lambda: now.deep.seconds)
    reason_against = FirstRun.reason_against

    def compare(first: FirstRun, number: int, tensor: torch.Tensor) -> str | None:
        now.deep.seconds += 100
        return reason_against(first, number, tensor)

    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        now.deep.seconds += 1
        return block.linear(value).exp()

    monkeypatch.setattr(FirstRun, "reason_against", compare)
    assert rehearse(rehearsal, forward).forward_s == 1
    assert now.deep.seconds > 100


def test_an_error_of_the_block_is_the_script_s(rehearsal: Rehearsal) -> None:
    def forward(block: Block, value: torch.Tensor) -> torch.Tensor:
        raise KeyError("of the block")

    block = Block(forward)
    rehearsal.open([block])
    with pytest.raises(KeyError, match="of the block"):
        block(torch.ones(3, _WIDTH))
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    rehearsal.close()
