"""`memtide run --share`: layers of a script that does not do it itself share their parameters, and
after some steps each has its own.

They share from the moment on when an optimizer gets their parameters, when DistributedDataParallel
wraps their model, or when `fully_shard` shards it or a part of it, whichever is first.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from memtide._launch.sharing import LayerSharing
from memtide._util.step_phase import Step
from memtide.errors import FailedPrecondition, InvalidArgument, MemtideError
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from memtide_methods.sharing.layers import delink, share_layers
from memtide_methods.sharing.named_layers import advice, find, layers_in
from memtide_methods.sharing.sharded_layers import are_sharded

# Options of fully_shard that all layers have to have in common.
_COMMON = ("mesh", "mp_policy", "offload_policy", "dp_mesh_dims")


class _Linked:
    """The layers of one module, and what trains them."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.steps = 0
        # Options of fully_shard, by the path in a layer of what it has sharded in all of them.
        self.sharded: dict[str, Mapping[str, Any]] = {}


class SharedLayers(LayerSharing):
    """The layers at one path, in each model of this process that has it. Used by the thread that
    trains. A mistake in the path or the layers ends the process, as SystemExit."""

    def __init__(self, path: str, delink_at_step: int | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._delink_at_step = delink_at_step
        self._say = say
        self._linked: weakref.WeakKeyDictionary[nn.Module, _Linked] = weakref.WeakKeyDictionary()
        self._given_up = WeakTensorKeyDictionary()  # Parameters that no layer has any more.
        self._wrapping: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._has_shared = False
        self._stepped: Optimizer | None = None

    def know(self, optimizer: Optimizer) -> None:
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
        with _ending_the_process():
            self._share(set(model.parameters()))
        self._wrapping.add(wrapping)

    def before_sharding(
        self, modules: Sequence[nn.Module], options: Mapping[str, Any]
    ) -> list[nn.Module]:
        """A script calls fully_shard. Returns the modules to shard together instead: for a part of
        a layer, that of all layers, whose parameters it has; none if that has been done."""
        with _ending_the_process():
            # To find layers may take some tenths of a second, and there are many calls.
            if not any(self._place_of(module) for module in modules):
                self._share({p for module in modules for p in module.parameters()})
            return [each for module in modules for each in self._together(module, options)]

    def before_step(self, step: Step) -> None:
        optimizer = step.optimizer
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

    def after_step(self, step: Step) -> None:
        self._stepped = step.optimizer

    def end_iteration(self) -> None:
        """Delinks layers, as the last phase: all others have seen the parameters that stepped."""
        optimizer, self._stepped = self._stepped, None
        for module, linked in list(self._linked.items()):
            if optimizer is not None and optimizer in linked.optimizers:
                linked.steps += 1
                if linked.steps == self._delink_at_step:
                    self._delink(module, optimizer)

    def _share(self, trained: Collection[torch.Tensor]) -> _Linked | None:
        try:
            module = find(self._path, trained)
            if module is None or module in self._linked:
                return self._linked.get(module) if module is not None else None
            layers = layers_in(module)
            if are_sharded(layers):
                raise FailedPrecondition(
                    "FSDP has sharded these layers before they could share: --share goes with "
                    "torch.distributed.fsdp.fully_shard, and not with FullyShardedDataParallel"
                )
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

    def _place_of(self, module: nn.Module) -> tuple[nn.Module, str] | None:
        """The module that has the layers, and the path in a layer; None: it is no part of one."""
        for linked in self._linked:
            for layer in layers_in(linked):
                for path, each in layer.named_modules():
                    if each is module:
                        return linked, path
        return None

    def _together(self, module: nn.Module, options: Mapping[str, Any]) -> list[nn.Module]:
        place = self._place_of(module)
        if place is None:
            return [module]
        linked, path = place
        common = {name: options.get(name) for name in _COMMON}
        first = self._linked[linked].sharded.setdefault(path, common)
        if first is common:
            return [layer.get_submodule(path) for layer in layers_in(linked)]
        for name in _COMMON:
            if first[name] != common[name]:
                raise InvalidArgument(
                    f"--share {self._path}: fully_shard has one {name} for a layer, and another "
                    "one for the next: layers that share are sharded alike"
                )
        return []

    def _wrapping_of(self, module: nn.Module) -> list[Any]:
        return [w for w in self._wrapping if any(each is module for each in w.modules())]


@contextlib.contextmanager
def _ending_the_process() -> Iterator[None]:
    """A context that shows what is wrong with the options as an error of `memtide run`."""
    try:
        yield
    except MemtideError as error:
        raise SystemExit(f"memtide: {error}") from None


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
