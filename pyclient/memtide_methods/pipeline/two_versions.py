"""The parameters of one stage in two versions, each in memory of its own.

Batch t is computed with version t - 1 (the first one with version 0), and its gradient makes
version t + 1 of version t. So version k is in room k % 2, and a new one takes the room of the one
that no backward will read any more. A forward binds the parameters of its version's room, so that
what autograd saves for its backward stays as it was.

In a named job a stage may die before all stages have committed a step, and then batch t is computed
once more. So version t - 1 stays until version t + 1 is committed: there is a third room.
"""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from memtide._capi.client import Kind
from memtide._memory.adoption import adopt
from torch import nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from memtide_methods.pipeline.committed_versions import OlderVersion, committing


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

    def __init__(self, module: nn.Module, *, recompute: bool = False) -> None:
        """`recompute`: backward computes the forward again, and only inputs are saved for it."""
        super().__init__()
        self.module = module
        self._recompute = recompute
        self._handles = dict(module.named_parameters())
        self._trained = {n: h for n, h in self._handles.items() if h.requires_grad}
        self._rooms = nn.ModuleList()
        self._read = 0
        self.before = 0  # Batches before the first one here, in a job that is resumed.
        self._committing = committing() if self._trained else None
        self._older: OlderVersion | None = None
        if self._committing is not None:
            # Each room has chunks of its own: those of a version that is committed are not written.
            self._older = OlderVersion(self._copies(row=2))

    def read_for(self, batch: int) -> None:
        """Forwards are those of this batch until the next call."""
        self._read = batch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with the version for the present batch."""
        self._open()
        tensors: dict[str, torch.Tensor] = {**self._in_room(self._version_of(self._read))}
        if self._recompute:
            return checkpoint(
                functional_call, self.module, tensors, args, kwargs, use_reentrant=False
            )
        return functional_call(self.module, tensors, args, kwargs)

    def bound_for(self, batch: int) -> contextlib.AbstractContextManager[None]:
        """The module's parameters are those of this batch's version meanwhile. A backward in which
        parts of the forward are computed again needs it (torch.utils.checkpoint)."""
        tensors: dict[str, torch.Tensor] = {**self._in_room(self._version_of(batch))}
        bound: contextlib.AbstractContextManager[None] = _reparametrize_module(
            self.module, tensors, tie_weights=True
        )
        return bound

    def gradients(self, batch: int) -> dict[str, torch.Tensor]:
        """The gradients of the stage's parameters, by their names. REQUIRES: as `step`."""
        source = self._in_room(self._version_of(batch))
        return {name: its.grad for name, its in source.items() if its.grad is not None}

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
        source = self._in_room(self._version_of(batch))
        if len(self._rooms) == 1:
            self._rooms.append(_Room({name: _copy(room) for name, room in source.items()}))
        newest, target = self._in_room(batch), self._in_room(batch + 1)
        with torch.no_grad():
            for name, handle in self._trained.items():
                gradient, source[name].grad = source[name].grad, None
                target[name].data.copy_(newest[name].data)
                handle.data, handle.grad = target[name].data, gradient
                if gradient is not None and scale != 1:
                    gradient.div_(scale)
        if group is not None:
            self._average(group)
        if self._older is not None and self._committing is not None:
            self._older.come_to(self.before + batch + 1, newest)
            # Chunks that a process has leased for writing when it is killed are torn.
            self._committing.client.flush()
        optimizer.step()
        for handle in self._handles.values():
            handle.grad = None

    def weight_bytes(self) -> int:
        """Bytes of all versions that there are."""
        older = self._older.by_name.values() if self._older is not None else ()
        held = chain(self._handles.values(), older, self._rooms.parameters())
        by_address = {parameter.data_ptr(): parameter.nbytes for parameter in held}
        return sum(by_address.values())

    def _open(self) -> None:
        """Makes the rooms, unless there are some. A job that is resumed has given parameters their
        values by then, as it does so before the first forward."""
        if self._rooms:
            return
        rooms = [self._handles]
        if self._older is not None:
            self.before = self._older.newest
            rooms += [self._handles | self._copies(row=1), self._handles | self._older.by_name]
        # Without a commit, the second room is made when there is a second version.
        for room in rooms:
            self._rooms.append(_Room({name: _alias(its) for name, its in room.items()}))

    def _copies(self, row: int) -> dict[str, nn.Parameter]:
        assert self._committing is not None
        copies = {name: _copy(handle) for name, handle in self._trained.items()}
        for copy in copies.values():
            adopt(self._committing.memory, copy, Kind.PARAMETER, row)
        return copies

    def _version_of(self, batch: int) -> int:
        """The version that a batch is computed with; -1: the one before the first batch here."""
        return batch - 1 if batch or self.before else 0

    def _in_room(self, version: int) -> dict[str, nn.Parameter]:
        room = self._rooms[version % (2 if self._older is None else 3)]
        assert isinstance(room, _Room)
        return room.by_name()

    def _average(self, group: dist.ProcessGroup) -> None:
        for handle in self._handles.values():
            if handle.grad is not None:
                dist.all_reduce(handle.grad, group=group)
                handle.grad.div_(dist.get_world_size(group))


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    """In the same memory. Unlike `detach`, `data` has a count of writes of its own: autograd must
    not take a step in one room for a write to the other one."""
    return nn.Parameter(parameter.data, parameter.requires_grad)


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    """In memory of its own, unless it is never written."""
    data = parameter.data.clone() if parameter.requires_grad else parameter.data
    return nn.Parameter(data, parameter.requires_grad)
