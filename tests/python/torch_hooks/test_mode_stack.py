"""One mode is taken off the stack and put back, and the others stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from memtide._torch_hooks import mode_stack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Recording(TorchDispatchMode):
    """Knows the operations that it sees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def net() -> Iterator[Recording]:
    with Recording() as mode:
        yield mode


def stack() -> list[Any]:
    return [
        torch._C._get_dispatch_stack_at(index)
        for index in range(torch._C._len_torch_dispatch_stack())
    ]


def test_a_mode_between_others_is_taken_off_and_put_back_there(net: Recording) -> None:
    with Recording() as middle, Recording() as top:
        assert mode_stack.take_off(middle) == 1
        assert stack() == [net, top]
        mode_stack.put_back(middle, 1)
        assert stack() == [net, middle, top]


def test_modes_that_are_entered_meanwhile_stay_above(net: Recording) -> None:
    depth = mode_stack.take_off(net)
    with Recording() as entered:
        mode_stack.put_back(net, depth)
        assert stack() == [net, entered]
    assert stack() == [net]


def test_a_mode_is_on_top_if_those_below_it_have_gone() -> None:
    with Recording():
        top = Recording()
        top.__enter__()
        depth = mode_stack.take_off(top)
    mode_stack.put_back(top, depth)
    assert stack() == [top]
    top.__exit__(None, None, None)


def test_torch_s_own_modes_stay_where_they_are(net: Recording) -> None:
    with FakeTensorMode() as fake:
        assert mode_stack.depth_of(net) == 0 and not mode_stack.is_alone(net)
        depth = mode_stack.take_off(net)
        assert stack() == [fake]
        mode_stack.put_back(net, depth)
        assert stack() == [fake, net]
    assert stack() == [net]


def test_a_mode_that_is_not_there_has_no_depth(net: Recording) -> None:
    assert mode_stack.depth_of(net) == 0 and mode_stack.is_alone(net)
    assert mode_stack.depth_of(Recording()) is None
    with Recording():
        assert not mode_stack.is_alone(net)


def test_a_block_runs_without_a_mode_also_if_it_raises(net: Recording) -> None:
    with pytest.raises(KeyError), mode_stack.without(net):
        assert stack() == []
        raise KeyError
    assert stack() == [net]
    with mode_stack.without(Recording()):
        assert stack() == [net]


def test_what_a_prehook_takes_off_is_off_for_that_node_alone(net: Recording) -> None:
    weight = torch.ones(4, requires_grad=True)
    hidden = weight.exp()
    loss = hidden.sin()
    assert loss.grad_fn is not None

    def take_off(_gradients: Any) -> None:
        mode_stack.take_off(net)

    loss.grad_fn.register_prehook(take_off)
    net.seen.clear()
    loss.sum().backward()
    assert "aten.cos.default" not in net.seen, "sin's backward"
    assert "aten.mul.Tensor" in net.seen, "exp's backward"
    assert stack() == [net]
