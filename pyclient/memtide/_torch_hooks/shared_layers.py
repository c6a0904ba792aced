"""`memtide run --share`: layers of a script that does not do it itself share their parameters, and
after some steps each has its own.

They share from the moment on when an optimizer gets their parameters, or when
DistributedDataParallel wraps their model, whichever is first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from memtide._sharing.layers import delink, share_layers
from memtide._sharing.named_layers import advice, find, layers_in
from memtide._torch_hooks.attributes import Function
from memtide.errors import FailedPrecondition, InvalidArgument, MemtideError


class _Linked:
    """The layers of one module, and what trains them."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.steps = 0


class SharedLayers:
    """The layers at one path, in each model of this process that has it. Used by the thread that
    trains. What is wrong with the path or the layers ends the process, as SystemExit."""

    def __init__(self, path: str, delink_at_step: int | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._delink_at_step = delink_at_step
        self._say = say
        self._linked: weakref.WeakKeyDictionary[nn.Module, _Linked] = weakref.WeakKeyDictionary()
        self._given_up = WeakTensorKeyDictionary()  # Parameters that no layer has any more.
        self._wrapping: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._has_shared = False

    def know(self, optimizer: Optimizer) -> None:
        """An optimizer has got a group of parameters."""
        with _ending_the_process():
            linked = self._share({p for g in optimizer.param_groups for p in g["params"]})
            if linked is not None:
                linked.optimizers.add(optimizer)
                if self._delink_at_step is not None and len(linked.optimizers) > 1:
                    raise InvalidArgument(
                        "--delink-at-step: several optimizers have parameters of the layers, and "
                        "it can delink those of one"
                    )
        for group in optimizer.param_groups:
            if any(p in self._given_up for p in group["params"]):
                group["params"] = [p for p in group["params"] if p not in self._given_up]

    def wrap(self, wrapping: nn.Module, model: nn.Module) -> None:
        """DistributedDataParallel begins to wrap a model."""
        with _ending_the_process():
            self._share(set(model.parameters()))
        self._wrapping.add(wrapping)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        with _ending_the_process():
            if not self._has_shared:
                trained = {p for g in optimizer.param_groups for p in g["params"]}
                raise InvalidArgument(
                    f"--share {self._path}: no module of this path is in a model that an optimizer "
                    f"trains; {advice(trained)}"
                )
            if self._delink_at_step is None:
                return
            for module, linked in self._linked.items():
                if linked.steps == 0 and optimizer in linked.optimizers:
                    for wrapping in self._wrapping_of(module):
                        _check_can_rebuild(wrapping)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        for module, linked in list(self._linked.items()):
            if optimizer in linked.optimizers:
                linked.steps += 1
                if linked.steps == self._delink_at_step:
                    self._delink(module, optimizer)

    def _share(self, trained: Collection[torch.Tensor]) -> _Linked | None:
        try:
            module = find(self._path, trained)
            if module is None or module in self._linked:
                return self._linked.get(module) if module is not None else None
            layers = layers_in(module)
            _check_unsharded(module)
            before = set(module.parameters())
            share_layers(layers)
        except MemtideError as error:
            raise InvalidArgument(f"--share {self._path}: {error}") from None
        for parameter in before - set(module.parameters()):
            self._given_up[parameter] = True
        self._has_shared = True
        linked = self._linked[module] = _Linked()
        self._say(f"{len(layers)} layers of {self._path} share their parameters")
        return linked

    def _delink(self, module: nn.Module, optimizer: Optimizer) -> None:
        with _ending_the_process():
            try:
                delink(layers_in(module), optimizer)
            except MemtideError as error:
                raise InvalidArgument(f"--delink-at-step {self._delink_at_step}: {error}") from None
        for wrapping in self._wrapping_of(module):
            _rebuild(wrapping)
        self._say(f"layers of {self._path} have parameters of their own after this step")

    def _wrapping_of(self, module: nn.Module) -> list[Any]:
        return [w for w in self._wrapping if any(each is module for each in w.modules())]


def wrapping_models(on_wrapping: Callable[[nn.Module, nn.Module], None], original: Function) -> Any:
    """torch.nn.parallel.DistributedDataParallel.__init__."""

    @functools.wraps(original)
    def __init__(wrapping: nn.Module, *args: Any, **kwargs: Any) -> None:
        model = args[0] if args else kwargs.get("module")
        if isinstance(model, nn.Module):
            on_wrapping(wrapping, model)
        original(wrapping, *args, **kwargs)

    return __init__


@contextlib.contextmanager
def _ending_the_process() -> Iterator[None]:
    """A context that shows what is wrong with the options as an error of `memtide run`."""
    try:
        yield
    except MemtideError as error:
        raise SystemExit(f"memtide: {error}") from None


def _check_unsharded(module: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(
        kind
        for name in ("FSDPModule", "FullyShardedDataParallel")
        if (kind := getattr(fsdp, name, None)) is not None
    )
    sharded = any(type(p).__name__ in ("DTensor", "FlatParameter") for p in module.parameters())
    if sharded or any(isinstance(each, kinds) for each in module.modules()):
        raise FailedPrecondition(
            "FSDP has sharded these layers, and then they cannot share: use "
            "DistributedDataParallel, or call memtide.share_layers before the model is sharded"
        )


def _check_can_rebuild(wrapping: Any) -> None:
    if wrapping._comm_hooks or wrapping.mixed_precision or wrapping._use_python_reducer:
        raise FailedPrecondition(
            "--delink-at-step: DistributedDataParallel has a communication hook, mixed precision "
            "or a reducer in Python, whose state is that of the parameters before: delink without "
            "them"
        )


def _rebuild(wrapping: Any) -> None:
    """Makes the reducer of a DistributedDataParallel anew, for the parameters that its module has
    now, as torch does where one is unpickled. The script goes on with the same object. All ranks
    come here after the same step."""
    wrapping._module_parameters = [
        parameter
        for name, parameter in wrapping.module.named_parameters()
        if name not in wrapping.parameters_to_ignore
    ]
    parameters, expect_sparse_gradient = wrapping._build_params_for_reducer()
    names = wrapping._build_debug_param_to_name_mapping(parameters)
    wrapping._ddp_init_helper(parameters, expect_sparse_gradient, names, wrapping.static_graph)
    if wrapping.static_graph:
        wrapping.reducer._set_static_graph()
        wrapping.logger._set_static_graph()
