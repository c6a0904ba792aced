"""The script's choices for activations: by a word, by module, by part of its code."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import memtide
import pytest
import torch
from chosen_activations import managed
from memtide._activations.activations import Activations
from memtide._activations.script_choices import choices_of
from memtide.errors import UsageError
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_hooks = torch._C._autograd
# Deeper than effects are looked for.
_deep = SimpleNamespace(calls=Counter())


class Block(nn.Module):
    """Has a dropout, and a `part` that may say what is done with what it saves."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 128)
        self.narrow = nn.Linear(128, 32)
        self.part: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        _deep.calls[self] += 1
        with self.part():
            wide = functional.gelu(self.wide(value))
        return value + functional.dropout(self.narrow(wide), 0.2, self.training)


class Model(nn.Module):
    """Four blocks in a list, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def train(model: nn.Module, steps: int = 4) -> list[torch.Tensor]:
    """The losses, and the weights behind them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def check_trains_as_plain(model: Model) -> None:
    ours, plain = train(model), train(Model())
    assert all(map(torch.equal, ours, plain))


def moved_by(activations: Activations, module: nn.Module, width: int = 32) -> int:
    """The bytes that one forward and backward pass of a module moves."""
    before = activations.moved_bytes
    output = module(torch.ones(64, width) * 1)
    # Storages that could not leave while in use are tried again when something else is saved.
    (torch.ones(64, 64, requires_grad=True).exp().sum() * output.sum()).backward()
    return activations.moved_bytes - before


def test_keep_leaves_all_where_it_is_whatever_the_budget() -> None:
    model = Model()
    with managed(model, "keep", allowed_bytes=0) as activations:
        check_trains_as_plain(model)
        assert activations.moved_bytes == 0
        assert _hooks._top_saved_tensors_default_hooks(True) is None


def test_move_needs_no_budget() -> None:
    model = Model()
    with managed(model, "move") as activations:
        check_trains_as_plain(model)
        # In each of the four steps: at least what the last layers of the blocks get.
        assert activations.moved_bytes >= 4 * 4 * 64 * 128 * 4
        assert activations.kept_bytes == 0
        assert activations.as_json()["blocks"] == 0


def test_recompute_needs_no_budget_and_takes_each_block() -> None:
    model = Model()
    with managed(model, "recompute") as activations:
        check_trains_as_plain(model)
        assert activations.moved_bytes == 0
        assert activations.as_json()["recomputed_blocks"] == 4
    # The first step, the rehearsal, and two steps in which each block runs twice.
    assert [_deep.calls[block] for block in model.blocks] == [1 + 2 + 2 * 2] * 4


def test_the_plan_moves_nothing_without_a_budget() -> None:
    model = Model()
    with managed(model) as activations:
        check_trains_as_plain(model)
        assert activations.moved_bytes == 0
        assert _hooks._top_saved_tensors_default_hooks(True) is None


def test_a_module_has_the_choice_of_the_first_pattern_that_matches_it() -> None:
    model = Model()
    chosen = {"blocks.0": "keep", "blocks.?": "move", "head": "plan", "*": "keep"}
    with managed(model, chosen, allowed_bytes=0) as activations:
        assert moved_by(activations, model.blocks[0]) == 0
        assert moved_by(activations, model.blocks[1]) > 0
        assert moved_by(activations, model.head) > 0
        train(model)
        assert activations.as_json()["recomputed_blocks"] == 0


def test_a_part_of_a_module_has_its_module_s_choice_unless_it_has_its_own() -> None:
    model = Model()
    with managed(model, {"head.2": "keep", "head": "move"}) as activations:
        # The last layer saves the tensor that Tanh has returned, so one of two is moved.
        moved_bytes = moved_by(activations, model.head)
    with managed(model, {"head": "move"}) as activations:
        assert moved_by(activations, model.head) > moved_bytes


def test_a_list_of_modules_hands_its_choice_to_them() -> None:
    model = Model()
    with managed(model, {"blocks": "recompute"}) as activations:
        check_trains_as_plain(model)
        assert activations.as_json()["recomputed_blocks"] == 4


def test_a_module_that_is_named_is_recomputed_though_it_is_not_repeated() -> None:
    model = Model()
    model.head[1].forward = lambda value: _deep.calls.update("h") or value.tanh()
    with managed(model, {"head": "recompute"}) as activations:
        check_trains_as_plain(model)
        assert activations.as_json()["recomputed_blocks"] == 1
    assert _deep.calls["h"] == 1 + 2 + 2 * 2
    assert [_deep.calls[block] for block in model.blocks] == [4] * 4


@pytest.mark.parametrize(
    ("activations", "error"),
    [
        ("moove", "activations: 'moove' is none of 'plan', 'keep', 'move', 'recompute'"),
        (None, "activations: None is neither a word .* nor a mapping"),
        ({"head": "drop"}, r"activations\['head'\]: 'drop' is none of 'plan'"),
        ({"head": 1}, r"activations\['head'\]: 1 is none of"),
        ({0: "keep"}, r"activations\[0\]: a key is a pattern"),
        ({"layers.*": "keep"}, r"'layers.\*'\]: no module .* first ones are 'blocks', 'blocks.0'"),
        ({"*": "keep", "head": "move"}, r"\['head'\]: every module that it matches has matched"),
        ({"head": "move", "head.2": "keep"}, "every module .*, or lies in one that has"),
        ({"head.0": "move", "head": "recompute"}, "'head.0' has 'move', but lies in 'head'"),
        ({"head.0": "plan", "head": "recompute"}, "'head.0' has 'plan', but lies in 'head'"),
    ],
)
def test_a_choice_without_effect_is_an_error(activations: object, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        choices_of(Model(), activations)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=error):  # At once: no daemon is looked for.
        memtide.offload(Model(), activations=activations)  # type: ignore[arg-type]


def test_a_word_for_a_part_is_checked_where_it_is_given() -> None:
    for word in ("recompute", "plan", None):
        with pytest.raises(UsageError, match=f"{word!r} is none of 'keep', 'move'"):
            memtide.activations(word)  # type: ignore[arg-type]


def test_a_part_without_memtide_is_as_it_is() -> None:
    with memtide.activations("move"):
        assert _hooks._top_saved_tensors_default_hooks(True) is None


def test_a_part_moves_without_a_budget_and_leaves_no_hooks() -> None:
    model = Model()
    with managed(model) as activations:
        model.blocks[1].part = lambda: memtide.activations("move")
        check_trains_as_plain(model)
        moved_bytes = activations.moved_bytes
        # In each step at least what GELU gets; nothing of the other blocks.
        assert 4 * 64 * 128 * 4 <= moved_bytes <= 4 * 64 * (128 + 128 + 32) * 4
        assert _hooks._top_saved_tensors_default_hooks(True) is None


def test_the_innermost_part_counts() -> None:
    model = Model()
    with managed(model, {"head": "move"}, allowed_bytes=0) as activations:
        with memtide.activations("keep"):
            assert moved_by(activations, model.blocks[0]) == 0
            assert moved_by(activations, model.head) > 0
            with memtide.activations("move"):
                assert moved_by(activations, model.blocks[0]) > 0
            assert moved_by(activations, model.blocks[0]) == 0
        assert moved_by(activations, model.blocks[0]) > 0


def test_an_error_ends_a_part() -> None:
    model = Model()
    with managed(model, allowed_bytes=0) as activations:
        with pytest.raises(KeyError), memtide.activations("keep"):
            raise KeyError
        assert moved_by(activations, model.blocks[0]) > 0


def test_a_part_counts_for_its_own_thread() -> None:
    model = Model()
    moved: list[int] = []
    with managed(model, allowed_bytes=0) as activations, memtide.activations("keep"):
        thread = threading.Thread(
            target=lambda: moved.append(moved_by(activations, model.blocks[0]))
        )
        thread.start()
        thread.join()
    assert moved[0] > 0


def test_a_block_that_says_itself_what_stays_is_not_recomputed() -> None:
    model = Model()
    with managed(model, "recompute") as activations:
        model.blocks[2].part = lambda: memtide.activations("keep")
        check_trains_as_plain(model)
        done = activations.as_json()
    assert done["recomputed_blocks"] == 3
    assert list(done["blocks_left_alone"].values()) == [1]
    assert _deep.calls[model.blocks[2]] == 4


def test_no_block_is_recomputed_in_a_part() -> None:
    model = Model()
    with managed(model, "recompute") as activations:
        train(model)
        before = _deep.calls[model.blocks[0]]
        with memtide.activations("keep"):
            model(torch.ones(2, 32)).sum().backward()
        assert _deep.calls[model.blocks[0]] == before + 1
        assert activations.moved_bytes == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_part_within_a_checkpoint_of_the_script_is_the_checkpoint_s(reentrant: bool) -> None:
    model = Model()
    x = torch.ones(64, 32, requires_grad=True)
    with managed(model):
        model.blocks[0].part = lambda: memtide.activations("move")
        torch.manual_seed(1)
        checkpoint(model.blocks[0], x, use_reentrant=reentrant).sum().backward()
        ours, x.grad = x.grad, None
        torch.manual_seed(1)
        model.blocks[0](x).sum().backward()
    assert x.grad is not None and ours is not None and torch.equal(ours, x.grad)


def test_a_part_and_function_transforms_contain_each_other() -> None:
    def moving(value: torch.Tensor) -> torch.Tensor:
        with memtide.activations("move"):
            return value.exp().tanh().sum()

    x = torch.linspace(0, 1, 512)
    expected = torch.func.grad(lambda value: value.exp().tanh().sum())(x)
    with managed(Model()) as activations:
        assert torch.equal(torch.func.grad(moving)(x), expected)
        with memtide.activations("move"):
            assert torch.equal(torch.func.grad(moving)(x), expected)
            leaf = x.clone().requires_grad_()
            leaf.exp().tanh().exp().tanh().sum().backward()
        assert activations.moved_bytes > 0


def test_compiled_code_has_no_parts() -> None:
    torch._dynamo.reset()

    def compiled(value: torch.Tensor) -> torch.Tensor:
        with memtide.activations("move"):
            return value.exp().tanh()

    with managed(Model()):
        run = torch.compile(compiled, backend="eager")
        x = torch.ones(512, requires_grad=True)
        run(x).sum().backward()
    assert x.grad is not None
