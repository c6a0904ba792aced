"""memtide in two lines of a script that is not run by `memtide run`."""

from __future__ import annotations

import os
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from memtide import runtime as runtimes
from memtide.checkpoint_file import Checkpoint, entries_of
from memtide.chunk_size import Parameter
from memtide.connect import Connection, Wish, connect
from memtide.daemon import Pools
from memtide.errors import FailedPrecondition
from memtide.sizes import parse_size
from memtide.stats import Recorder

_connection: Connection | None = None


class Offloaded:
    """A model whose states live in memtide's chunks. Close it to have them back in the process."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        recorder: Recorder,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._model = model
        self._optimizers = optimizers
        self._closed = False

    def stats(self) -> dict[str, Any]:
        """What the run has cost so far; the same values that `memtide run --stats` writes."""
        return self._recorder.finish().as_json()

    def close(self) -> None:
        """Moves everything back to ordinary memory and takes the hooks out of torch."""
        if self._closed:
            return
        self._closed = True
        adopter = self._runtime.adopter
        runtimes.stop()
        for parameter in self._model.parameters():
            for tensor in (parameter, parameter.grad):
                if tensor is not None and adopter.manages(tensor):
                    adopter.restore(tensor)
        for optimizer in self._optimizers:
            adopter.restore_state(optimizer.state)
        adopter.trim_all()

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def offload(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
    *,
    device_pool: str | int | None = None,
    host_pool: str | int | None = None,
    ssd_pool: str | int | None = None,
    chunk_size: str | int = 0,
    exact: bool = False,
) -> Offloaded:
    """Moves a model's states to memtide's chunks and keeps them there while it trains.

    The parameters move now; gradients and optimizer state as they come to be. Training goes on as
    before, with the same results. Optimizers made from now on need not be named.

    Adam, AdamW, SGD and Adagrad step in the daemon where the states do not fit: docs/optimizers.md
    says how close to torch's own. With `exact` they step in this process, to the same bits.

    Sizes are bytes or texts such as "2GiB". With none of the pools named, the node's daemon is used
    if one answers; else a private daemon is started, which ends with this process. Without
    `chunk_size` the one that suits the model's parameters is searched; a process has one session,
    so the first call's size stays.

        model, optimizer = ...
        with memtide.offload(model, optimizer, host_pool="2GiB"):
            train(model, optimizer)
    """
    global _connection
    if runtimes.current() is not None:
        raise FailedPrecondition("memtide manages this process already: close it first")
    if _connection is None:
        pools = Pools(_bytes(device_pool), _bytes(host_pool), _bytes(ssd_pool))
        listed = tuple(
            Parameter(p.numel() * p.itemsize, trained=p.requires_grad) for p in model.parameters()
        )
        _connection = connect(Wish(pools, chunk_bytes=_bytes(chunk_size) or 0, parameters=listed))
    recorder = Recorder(_connection.client, _connection.socket_dir)
    runtime = runtimes.start(_connection.client, recorder, adopt_everything=False)
    runtime.daemon.allowed &= not exact
    for parameter in model.parameters():
        runtime.scope.name(parameter)
        runtime.moments.adopt_parameter(parameter)
        runtime.adopter.adopt_gradient(parameter)
    optimizers = _listed(optimizer)
    for each in optimizers:
        runtime.adopt_state_of(each)
        _wrap_step_of(each)
    return Offloaded(runtime, recorder, model, optimizers)


def checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Checkpoint:
    """Writes the model's state_dict as it is now to a safetensors file; with an optimizer, its
    tensors too, named as `optimizer.state.<index>.<name>` with the indices of its state_dict.

    Where the daemon steps, training goes on while the file is written: the result says how far it
    is, and `wait()` returns when it is there; before the next step, it writes the file. Until that
    step has begun, parameters and states must not be changed. Without an optimizer,
    `model.load_state_dict(load_file(path))` takes it.
    """
    runtime = runtimes.current()
    tensors = [(name, t) for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)]
    if optimizer is not None:
        tensors += [
            (f"optimizer.state.{index}.{name}", value)
            for index, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        ]
    manages = runtime.adopter.manages if runtime is not None else lambda _: False
    made = Checkpoint(Path(path).absolute(), entries_of(tensors, manages))
    if runtime is not None:
        runtime.daemon.write(made)
    else:
        made.write(lambda _address, _size_bytes: iter(()))
    if made.done:
        made.wait()  # Raises what its writing did.
    return made


def _wrap_step_of(optimizer: torch.optim.Optimizer) -> None:
    # A scheduler that is older than the hooks has put a step of its own on the instance.
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_memtide"):
        wrapped = runtimes.wrap_step(lambda _optimizer, *args, **kwargs: step(*args, **kwargs))
        optimizer.step = types.MethodType(wrapped, optimizer)  # type: ignore[method-assign]


def _listed(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]


def _bytes(size: str | int | None) -> int | None:
    return parse_size(size) if isinstance(size, str) else size
