"""The parameters of one stage in two versions, each in memory of its own.

Batch t is computed with version t - 1 (the first one with version 0), and its gradient makes
version t + 1 of version t. So version k is in room k % 2, and a new one takes the room of the one
that no backward will read any more. A forward binds the parameters of its version's room, so that
what autograd saves for its backward stays as it was.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim import Optimizer


class _Room(nn.Module):
    """Parameters of one version. A module, so that memtide takes them into chunks."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self._names = list(parameters)
        for number, parameter in enumerate(parameters.values()):
            self.register_parameter(str(number), parameter)

    def by_name(self) -> dict[str, nn.Parameter]:
        """By their names in the stage's module."""
        return dict(zip(self._names, self.parameters(), strict=True))


class TwoVersions(nn.Module):
    """A stage's module, whose parameters the optimizer has. Between steps their values are those of
    the newest version, which no graph of autograd reads through them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._handles = dict(module.named_parameters())
        # The second room is made when there is a second version.
        first = {name: _alias(handle) for name, handle in self._handles.items()}
        self._rooms = nn.ModuleList([_Room(first)])
        self._read = 0

    def read_for(self, batch: int) -> None:
        """Forwards are those of this batch until the next call."""
        self._read = _room_of(batch)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module, with the version for the present batch."""
        tensors: dict[str, torch.Tensor] = {**self._in_room(self._read)}
        return functional_call(self.module, tensors, args, kwargs)

    def bound_for(self, batch: int) -> contextlib.AbstractContextManager[None]:
        """The module's parameters are those of this batch's version meanwhile. A backward in which
        parts of the forward are computed again needs it (torch.utils.checkpoint)."""
        tensors: dict[str, torch.Tensor] = {**self._in_room(_room_of(batch))}
        bound: contextlib.AbstractContextManager[None] = _reparametrize_module(
            self.module, tensors, tie_weights=True
        )
        return bound

    def step(
        self,
        optimizer: Optimizer,
        batch: int,
        scale: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Makes version `batch` + 1. REQUIRES: all backwards of this batch have ended.

        Gradients are divided by `scale`, and averaged over `group`, whose processes have the same
        stage."""
        source = self._in_room(_room_of(batch))
        if len(self._rooms) == 1:
            self._rooms.append(_Room({name: _copy(room) for name, room in source.items()}))
        newest, target = self._in_room(batch % 2), self._in_room((batch + 1) % 2)
        with torch.no_grad():
            for name, handle in self._handles.items():
                if not handle.requires_grad:
                    continue
                gradient, source[name].grad = source[name].grad, None
                target[name].data.copy_(newest[name].data)
                handle.data, handle.grad = target[name].data, gradient
                if gradient is not None and scale != 1:
                    gradient.div_(scale)
        if group is not None:
            self._average(group)
        optimizer.step()
        for handle in self._handles.values():
            handle.grad = None

    def weight_bytes(self) -> int:
        """Bytes of all versions that there are."""
        by_address = {p.data_ptr(): p.nbytes for room in self._rooms for p in room.parameters()}
        return sum(by_address.values())

    def _in_room(self, number: int) -> dict[str, nn.Parameter]:
        room = self._rooms[number]
        assert isinstance(room, _Room)
        return room.by_name()

    def _average(self, group: dist.ProcessGroup) -> None:
        for handle in self._handles.values():
            if handle.grad is not None:
                dist.all_reduce(handle.grad, group=group)
                handle.grad.div_(dist.get_world_size(group))


def _room_of(batch: int) -> int:
    return max(batch - 1, 0) % 2


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    """In the same memory. Unlike `detach`, `data` has a count of writes of its own: autograd must
    not take a step in one room for a write to the other one."""
    return nn.Parameter(parameter.data, parameter.requires_grad)


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    """In memory of its own, unless it is never written."""
    data = parameter.data.clone() if parameter.requires_grad else parameter.data
    return nn.Parameter(data, parameter.requires_grad)
