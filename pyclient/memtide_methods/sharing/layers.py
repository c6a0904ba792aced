"""Layers that train as one, and then each by itself (Pseudo-to-Real: Lin et al., M6-10T, 2021).

Layers of one shape share the parameters of the first one: their gradients are summed, and there is
one copy of parameters, gradients and optimizer states. When they are delinked, each goes on from
there with parameters of its own. Until then the layers cost the memory of one, and the compute of
all.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import torch
from memtide._memory.duplicates import Duplicates
from memtide._memory.tensor_parts import tensors_in
from memtide.errors import FailedPrecondition, InvalidArgument
from torch import nn
from torch.optim import Optimizer

from memtide_methods.sharing import sharded_layers
from memtide_methods.sharing.live_modules import check_untied


def share_layers(layers: Sequence[nn.Module], optimizer: Optimizer | None = None) -> None:
    """Gives all layers the parameters of the first one.

    Call it when the model is whole, and before it is wrapped in DistributedDataParallel or sharded.
    An optimizer that has the layers' parameters already has to be given, and must not have stepped.
    Buffers, such as running means, stay each layer's own.
    InvalidArgument: the layers have parameters of other names, shapes or types, or are fewer than
    two, or another module has one of them, too. FailedPrecondition: FSDP has sharded the layers, or
    the optimizer has stepped.
    """
    layers = list(layers)
    if len(layers) < 2:
        raise InvalidArgument(f"share_layers takes two layers or more, not {len(layers)}")
    if sharded_layers.are_sharded(layers):
        raise FailedPrecondition(
            "FSDP has sharded these layers, and then they cannot share: call memtide.share_layers "
            "first, and then fully_shard([*layers]) once for all layers, or only for the model"
        )
    first = dict(_parameters_of(layers[0]))
    for number, layer in enumerate(layers[1:], 1):
        _check_alike(first, dict(_parameters_of(layer)), number)
    check_untied(layers)
    given_up = {p for layer in layers[1:] for _, p in _parameters_of(layer)} - set(first.values())
    if optimizer is not None:
        if optimizer.state:
            raise FailedPrecondition(
                "the optimizer has stepped: share layers before its first step"
            )
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p not in given_up]
    for layer in layers[1:]:
        for name, parameter in first.items():
            _put(layer, name, parameter)


def delink(
    layers: Sequence[nn.Module],
    optimizer: Optimizer | None = None,
    *,
    moments: Literal["copy", "fresh"] = "copy",
) -> None:
    """Gives each layer but the first parameters of its own, with the values that all share now.

    Call it between an optimizer's step and the next forward. The optimizer that has the shared
    parameters gets the new ones into the groups of these, with copies of their states, or, with
    `moments="fresh"`, without. A DistributedDataParallel around the model has to be made anew.
    Layers that `fully_shard` has sharded stay so: all ranks call this after the same step, and each
    layer has shards of its own, as if a call of its own had sharded it.
    FailedPrecondition: the layers do not share their parameters, or FSDP has them in a way that
    does not let them part (sharded_layers.py).
    """
    layers = list(layers)
    if moments not in ("copy", "fresh"):
        raise InvalidArgument(f'moments is "{moments}"; it must be "copy" or "fresh"')
    of_fsdp = sharded_layers.states_of(layers) if sharded_layers.are_sharded(layers) else []
    shared = dict(_parameters_of(layers[0])) if layers else {}
    for number, layer in enumerate(layers[1:], 1):
        for name, parameter in _parameters_of(layer):
            if shared.get(name) is not parameter:
                raise FailedPrecondition(_why_not_shared(name, number, sharded=bool(of_fsdp)))
    with_states = moments == "copy"
    states = []
    if optimizer is not None and with_states:
        states = [optimizer.state.get(p) for p in shared.values()]
    copies = _Copies(set(shared.values()), states, len(layers) - 1)
    owns = [{p: p for p in shared.values()}]
    owns += [{p: copies.of_parameter(p) for p in shared.values()} for _ in layers[1:]]
    for layer, own in reversed(list(zip(layers[1:], owns[1:], strict=True))):
        for name, parameter in shared.items():
            _put(layer, name, own[parameter])
        if optimizer is not None:
            _add(optimizer, own, copies, with_states=with_states)
    sharded_layers.part(layers, of_fsdp, owns, copies.lazy)


def _why_not_shared(name: str, number: int, *, sharded: bool) -> str:
    alone = (
        "; layers that share are sharded by one call, fully_shard([*layers]), or only with the "
        "model"
    )
    return (
        f"layer {number} does not share its {name} with layer 0: only layers that share_layers has "
        f"linked can be delinked, and only once{alone if sharded else ''}"
    )


def _parameters_of(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All names of parameters: one that stands in several places has several."""
    return layer.named_parameters(remove_duplicate=False)


def _check_alike(
    first: dict[str, nn.Parameter], other: dict[str, nn.Parameter], number: int
) -> None:
    for name in (*first, *other):
        if name not in first or name not in other:
            without = 0 if name not in first else number
            raise InvalidArgument(f"layer {without} has no parameter {name}: layers are not alike")
        one, two = first[name], other[name]
        if one.shape != two.shape or one.dtype != two.dtype:
            raise InvalidArgument(
                f"{name} is {tuple(two.shape)} of {two.dtype} in layer {number}, and "
                f"{tuple(one.shape)} of {one.dtype} in layer 0: layers are not alike"
            )


def _put(layer: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    layer.get_submodule(path).register_parameter(last, parameter)


class _Copies:
    """Copies of parameters, with their gradients, and of their optimizer states. Where that is
    possible, bytes are copied at the first write to one of them: in chunks by the daemon
    (duplicates.py), and in memory of torch's own allocators by torch (`c10::impl::cow`)."""

    def __init__(self, parameters: Collection[nn.Parameter], states: Any, copies: int) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        self.lazy: set[int] = set()  # The storages, by `_cdata`, that torch copies at a write.
        self._in_chunks = Duplicates([*parameters, *gradients, *tensors_in(states)], copies)

    def of_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        copied = nn.Parameter(self._of(parameter.detach()), parameter.requires_grad)
        if parameter.grad is not None:
            copied.grad = self._of(parameter.grad.detach())
        return copied

    def of_state(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._of(value.detach())
        if isinstance(value, dict):
            return {key: self.of_state(each) for key, each in value.items()}
        return copy.deepcopy(value)

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:  # A DTensor.
            sharded = tensor.detach()
            sharded._local_tensor = self._of(local)  # type: ignore[attr-defined]
            return sharded
        in_chunks = self._in_chunks.take(tensor)
        if in_chunks is not None:
            return in_chunks
        # The first write copies all of the storage, which FSDP's gradients have in common.
        if tensor.untyped_storage().nbytes() > 2 * tensor.nbytes:
            return tensor.clone()
        try:
            lazy = torch._lazy_clone(tensor)
        except RuntimeError:
            # The memory is none of torch's own allocators', and was not duplicated.
            return tensor.clone()
        self.lazy.add(lazy.untyped_storage()._cdata)
        return lazy


def _add(
    optimizer: Optimizer,
    own: dict[nn.Parameter, nn.Parameter],
    copies: _Copies,
    *,
    with_states: bool,
) -> None:
    """Adds a layer's own parameters behind those of the first layer, where they are in an optimizer
    that was made for a plain model."""
    for group in optimizer.param_groups:
        params = group["params"]
        new = [own[p] for p in params if p in own]
        if new:
            end = max(n for n, p in enumerate(params) if p in own) + 1
            group["params"] = [*params[:end], *new, *params[end:]]
    for shared, copied in own.items():
        if with_states and shared in optimizer.state:
            optimizer.state[copied] = copies.of_state(optimizer.state[shared])
