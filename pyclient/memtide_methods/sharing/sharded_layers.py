"""Layers that `torch.distributed.fsdp.fully_shard` has sharded get shards of their own.

FSDP has a group of parameters for each of its calls: it gathers them together, and reduces their
gradients together. Layers that share are in one group, either that of `fully_shard([*layers])` or
that of a module around the layers. When they are delinked, the former becomes a group for each
layer, as if each had been sharded by a call of its own; the latter gets the new parameters. Groups
of each layer with the same parameters in all would gather and reduce them once for each layer; one
module in the place of all would leave none of them its own buffers and names.

No public name reaches FSDP's groups. Copies of them have all that a script has set, such as a
divisor of gradients. Groups are built as in torch 2.12; where they are not, delinking is refused.
Functions are called by the thread that trains, between a step and the next forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from memtide.errors import FailedPrecondition
from torch import nn

from memtide_methods.sharing.live_modules import live_modules

Own = Mapping[nn.Parameter, nn.Parameter]  # By a shared parameter, the one that a layer now has.
_OF_STATES = ("_modules", "_auto_reshard_after_forward", "_state_ctx")
_OF_PARAMETERS = ("_post_load_hook_handle", "_orig_param_uid", "all_gather_outputs")


def are_sharded(layers: Sequence[nn.Module]) -> bool:
    """Whether FSDP, of either kind, has one of the layers, or a part of one."""
    return any(
        getattr(module, "_is_fsdp_managed_module", False)
        for layer in layers
        for module in layer.modules()
    )


def states_of(layers: Sequence[nn.Module]) -> list[Any]:
    """FSDP's state of each call of fully_shard that has the layers' parameters. These are sharded
    afterwards: FSDP may leave them whole between two steps.

    FailedPrecondition: it is not fully_shard that has sharded the layers, torch has its states
    elsewhere, or gradients have not been reduced over the ranks.
    """
    from torch.distributed.fsdp import FSDPModule

    inside = {id(module) for layer in layers for module in layer.modules()}
    states: list[Any] = []
    for module in live_modules():
        if not issubclass(type(module), FSDPModule):
            continue
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        _check_known(state, ("_fsdp_param_groups",))
        parameters = [p for group in state._fsdp_param_groups for p in group.fsdp_params]
        if any(id(p._module_info.module) in inside for p in parameters):
            _check_known(state, _OF_STATES)
            for parameter in parameters:
                _check_known(parameter, _OF_PARAMETERS)
            _check_reduced(state)
            module.reshard()  # type: ignore[operator]
            if state not in states:
                states.append(state)
    if not states:
        raise FailedPrecondition(
            "FullyShardedDataParallel has the layers' parameters in flat ones, which stay as they "
            "are: to delink layers, shard the model with torch.distributed.fsdp.fully_shard"
        )
    return states


@torch.no_grad()
def part(
    layers: Sequence[nn.Module], states: Sequence[Any], owns: Sequence[Own], lazy: Collection[int]
) -> None:
    """Makes FSDP's groups right for layers that have got the parameters in `owns`: the first layer
    has those that were shared. `lazy`: the storages, by `_cdata`, whose bytes are copied at the
    first write. REQUIRES: the states are those of `states_of`."""
    numbers = {id(module): n for n, layer in enumerate(layers) for module in layer.modules()}
    for state in states:
        over = {numbers.get(id(module)) for module in state._modules}
        parted = [
            [_part_parameter(p, numbers, owns, lazy) for p in group.fsdp_params]
            for group in state._fsdp_param_groups
        ]
        if over == set(range(len(layers))):
            _split(state, parted, numbers)
            continue
        for group, parameters in zip(state._fsdp_param_groups, parted, strict=True):
            of_all = [each for of_layers in parameters for each in of_layers]
            _settle(group, _in_order(of_all, group.modules), group.modules)


def _check_known(of_torch: Any, names: Sequence[str]) -> None:
    for name in names:
        if not hasattr(of_torch, name):
            raise FailedPrecondition(
                f"torch {torch.__version__} has no {name} in FSDP's {type(of_torch).__name__}, "
                "which delink changes: delink with torch 2.12, or resume a checkpoint of the "
                "layers that share in a model whose layers do not"
            )


def _check_reduced(state: Any) -> None:
    for group in state._fsdp_param_groups:
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            waits = whole is not None and whole.grad is not None
            if (
                waits
                or parameter.unsharded_accumulated_grad is not None
                or group._partial_reduce_output is not None
            ):
                raise FailedPrecondition(
                    "gradients of the layers have not been reduced over the ranks: delink after a "
                    "step, whose last backward pass runs with set_requires_gradient_sync(True)"
                )


def _part_parameter(
    shared: Any, numbers: Mapping[int, int], owns: Sequence[Own], lazy: Collection[int]
) -> list[Any]:
    """The FSDPParam of each layer, of which the first one is `shared`; that alone if it is of no
    layer."""
    if shared.sharded_param not in owns[0]:
        return [shared]
    info = shared._module_info
    places = [
        (info.module, info.param_name),
        *zip(info.shared_modules, info.shared_param_names, strict=True),
    ]
    shared._post_load_hook_handle.remove()
    parted = []
    for number, own in enumerate(owns):
        one = shared if number == 0 else copy.copy(shared)
        _place(one, [place for place in places if numbers.get(id(place[0]), 0) == number])
        if one is not shared:
            _take(one, own[shared.sharded_param], lazy)
        parted.append(one)
    return parted


def _place(parameter: Any, places: Sequence[tuple[nn.Module, str]]) -> None:
    """Says in which modules an FSDPParam is, and under which names."""
    (module, name), *others = places
    parameter._module_info = type(parameter._module_info)(
        module, name, [other for other, _ in others], [other for _, other in others]
    )
    parameter._param_fqn = None  # The name in messages, which the first forward pass has found.

    def loaded(*_args: Any, **_kwargs: Any) -> None:
        parameter.reset_sharded_param()

    parameter._post_load_hook_handle = module.register_load_state_dict_post_hook(loaded)


def _take(parameter: Any, sharded: nn.Parameter, lazy: Collection[int]) -> None:
    """Gives a copied FSDPParam its own shard, and room of its own for the whole parameter."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import _get_orig_param_uid

    vars(parameter).pop("_unsharded_param", None)
    parameter.all_gather_outputs = []
    parameter._unsharded_inner_tensors = []
    if hasattr(parameter, "_extensions_data"):
        parameter._extensions_data = type(parameter._extensions_data)()
    parameter._orig_param_uid = _get_orig_param_uid(sharded)
    parameter.sharded_param = sharded
    local: Any = sharded._local_tensor  # type: ignore[attr-defined]
    elements = parameter.padded_sharded_param_size.numel()
    room = local.untyped_storage().nbytes() // local.itemsize - local.storage_offset()
    if local.untyped_storage()._cdata in lazy and room >= elements:
        # FSDP would ask for the address, and so copy it.
        parameter._sharded_param_data = local.as_strided((elements,), (1,))
    else:
        parameter._sharded_param_data = torch.empty(0)
        parameter.reset_sharded_param()


def _split(
    state: Any, parted: Sequence[Sequence[Sequence[Any]]], numbers: Mapping[int, int]
) -> None:
    """Makes a state for each layer of that for all. `parted`: by groups, parameters and layers."""
    from torch.distributed._composable.contract import STATE_KEY
    from torch.distributed._composable_state import _module_state_mapping

    state._pre_forward_hook_handle.remove()
    state._post_forward_hook_handle.remove()
    modules, groups, known = state._modules, state._fsdp_param_groups, state._state_ctx.all_states
    layers = range(max(numbers[id(module)] for module in modules) + 1)
    states = [state, *(copy.copy(state) for _ in layers[1:])]
    for one in states[1:]:
        one._fsdp_param_groups = [copy.copy(group) for group in groups]
    for number, one in enumerate(states):
        own_modules = tuple(m for m in modules if numbers[id(m)] == number)
        for group, parameters in zip(one._fsdp_param_groups, parted, strict=True):
            _settle(group, [of_layers[number] for of_layers in parameters], own_modules)
        one._modules_to_run_forward = set()
        if one._is_root is None:  # Before the first forward pass, each has contexts of its own.
            one._state_ctx, one._comm_ctx = type(one._state_ctx)(), type(one._comm_ctx)()
        for module in own_modules:
            del _module_state_mapping[module]
            by_function = vars(module)[STATE_KEY]
            by_function.update({f: one for f, each in by_function.items() if each is state})
        one.init(own_modules, one._device, one._mp_policy, one._auto_reshard_after_forward)
    if state in known:
        after = known.index(state) + 1
        known[after:after] = states[1:]


def _settle(group: Any, parameters: Sequence[Any], modules: Sequence[nn.Module]) -> None:
    """Gives a group these parameters of these modules, with hooks that shard them before a state
    dict is made or loaded."""
    saving = group._module_to_pre_save_state_dict_hook_handle
    loading = group._module_to_pre_load_state_dict_hook_handle
    for handle in (*saving.values(), *loading.values()):
        handle.remove()
    group.fsdp_params, group.modules = list(parameters), tuple(modules)
    group._post_forward_indices = []
    group._module_to_pre_save_state_dict_hook_handle = {}
    group._module_to_pre_load_state_dict_hook_handle = {}
    if saving:
        group._register_state_dict_hooks()


def _in_order(parameters: Sequence[Any], modules: Sequence[nn.Module]) -> list[Any]:
    """FSDP's own order, in which those of inner modules are first."""
    rest = {id(parameter.sharded_param): parameter for parameter in parameters}
    return [
        rest.pop(id(each))
        for top in modules
        for module in _inner_first(top)
        for each in module._parameters.values()
        if id(each) in rest
    ]


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _inner_first(child)
    yield module
