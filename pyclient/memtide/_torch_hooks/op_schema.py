"""Which arguments torch's operations read and write, by their schemas.

Schemas of torch's own operators mark what is written. Others mark it only if their author has done
so: those of collectives (`c10d`) mark nothing at all, nor do many extensions. An operation outside
of ATen that marks nothing counts as writing to all its tensors but those in a table, because a
write that is not announced is lost when its chunk is evicted as a clean one. A read that counts as
a write only costs a write-back.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_leaves

from memtide._memory.address_map import AddressMap

# Types of the other arguments of most operations.
_WITHOUT_TENSORS = frozenset(
    {type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Prefixes of the names of operations over lists of tensors.
LIST_PREFIXES = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


# Namespaces whose schemas mark all that is written.
_COMPLETE_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "_c10d_functional_autograd", "_dtensor", "torchvision"}
)
# By operation of other namespaces that marks nothing, the positions that it only reads. Inputs of a
# collective follow its outputs; what a functional one returns is new.
_ONLY_READ: dict[str, frozenset[int]] = {
    **{
        f"c10d::{name}": frozenset({1})
        for name in (
            *("allgather_", "_allgather_base_", "allgather_coalesced_"),
            *("allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_"),
            *("reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_"),
            *("gather_", "scatter_"),
        )
    },
    **{f"c10d::{name}": frozenset({0}) for name in ("send", "check_for_nan")},
    **{
        f"_c10d_functional::{name}": frozenset({0})
        for name in (
            *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce"),
            *("all_reduce_coalesced", "all_to_all_single", "broadcast", "isend"),
            *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "wait_tensor"),
        )
    },
    "fsdp::all_gather_copy_in": frozenset({0}),  # It copies them to its second argument.
}
# Namespaces of operations whose kernels call none that autocast casts for, but for these.
_CALL_NONE = frozenset({"aten", "prims", "prim", "c10d", "_c10d_functional", "fsdp"})
_CALL_OTHERS = frozenset(
    {"aten::linalg_pinv", "aten::_sparse_addmm", "aten::_transformer_encoder_layer_fwd"}
    | {"aten::_native_multi_head_attention", "aten::affine_grid_generator"}
)
_PINNING = "aten::_pin_memory"
_CHANGES_LIST = "aten::_foreach_"
# Operators of torch's own that write to running statistics, and do not mark it.
_UNMARKED_STATISTICS = frozenset(
    {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
    | {"aten::batch_norm_update_stats", "aten::batch_norm_gather_stats"}
    | {"aten::batch_norm_gather_stats_with_counts"}
)


def is_higher_order(operation: Any) -> bool:
    """Whether an operation takes functions (`torch.cond`, flex attention), and has no schema."""
    return not hasattr(operation, "_schema")


@cache
def written_arguments(operation: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the arguments that an operation changes, or may change."""
    schema = operation._schema
    if _marks_nothing(schema):
        read = _ONLY_READ.get(schema.name, frozenset())
        written = [(at, a.name) for at, a in enumerate(schema.arguments) if at not in read]
    else:
        unmarked = {"running_mean", "running_var"} if schema.name in _UNMARKED_STATISTICS else set()
        written = [
            (at, argument.name)
            for at, argument in enumerate(schema.arguments)
            if argument.name in unmarked
            or (argument.alias_info is not None and argument.alias_info.is_write)
        ]
    return frozenset(at for at, _ in written), frozenset(name for _, name in written)


def _marks_nothing(schema: Any) -> bool:
    """Whether an operation's schema does not say what it writes."""
    if schema.name.partition("::")[0] in _COMPLETE_NAMESPACES:
        return False
    return all(argument.alias_info is None for argument in schema.arguments)


def writes_arguments(operation: Any) -> bool:
    """Whether an operation changes any of its arguments, or may."""
    return is_higher_order(operation) or bool(written_arguments(operation)[0])


def run(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operation that a dispatch mode has seen, as if there were no mode.

    Below a mode, torch does not count the writes of operations over lists (`_foreach_add_`) in the
    tensors' versions. Then backward would not see that what it has saved was changed. Autocast is
    off there, for the operations that this one calls, too.
    """
    if not calls_operations(operation):
        return counting_writes(operation, args, lambda: operation(*args, **kwargs))
    with _autocast_of_script(operation, args, kwargs):
        return operation(*args, **kwargs)


@cache
def calls_operations(operation: Any) -> bool:
    """Whether an operation's kernel may call others that autocast casts for: those of libraries,
    and a few of torch's own. One that takes functions comes to a mode with autocast as it was."""
    if is_higher_order(operation):
        return False
    return operation.namespace not in _CALL_NONE or operation._schema.name in _CALL_OTHERS


@contextlib.contextmanager
def _autocast_of_script(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Autocast as it was where the script called the operation that a mode has seen, unless this
    operation has a kernel of autocast's, which has run and turns autocast off. An operation that is
    called by another one gets the state of the outermost call."""
    tensors = (each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor))
    types = {tensor.device.type for tensor in tensors}
    with torch.overrides.enable_reentrant_dispatch():  # Within it, modes would see operations.
        on = [
            each
            for each in types
            if torch.amp.autocast_mode.is_autocast_available(each)
            and torch.is_autocast_enabled(each)
            and not _has_autocast_kernel(operation, each)
        ]
    for each in on:
        torch.set_autocast_enabled(each, True)
    try:
        yield
    finally:
        for each in on:
            torch.set_autocast_enabled(each, False)


@cache
def _has_autocast_kernel(operation: Any, device_type: str) -> bool:
    key = f"Autocast{torch._C._dispatch_key_for_device(device_type)}"
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), key)


def counting_writes(operation: Any, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
    """Calls `call`, which does what the operation does, and counts it as `run` says."""
    if not _changes_list(operation):
        return call()
    changed = [tensor for tensor in args[0] if not tensor.is_inference()]
    versions = [tensor._version for tensor in changed]
    result = call()
    increment_version([t for t, v in zip(changed, versions, strict=True) if t._version == v])
    return result


@cache
def _changes_list(operation: Any) -> bool:
    if is_higher_order(operation) or not operation._schema.name.startswith(_CHANGES_LIST):
        return False
    return 0 in written_arguments(operation)[0]


def pins_host_memory(operation: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation allocates pinned host memory. CUDA says "out of memory" also if too
    little of that can be had, whatever is free on the device."""
    if is_higher_order(operation):
        return False
    return operation._schema.name == _PINNING or bool(kwargs.get("pin_memory"))


def pieces_of(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], most: int | None = None
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]] | None:
    """The arguments of one call for each index of an operation over lists of tensors, or of `most`
    calls for runs of indices; None: it is no such operation, or its lists have one index, of which
    a piece would be the whole again.

    Such an operation treats each index by itself, so the results are the same, and the chunks of
    fewer indices fit where those of all do not.
    """
    if is_higher_order(operation) or not operation._schema.name.startswith(LIST_PREFIXES):
        return None
    if len(operation._schema.returns) > 1:
        return None
    values = [*args, *kwargs.values()]
    lengths = {len(value) for value in values if isinstance(value, list | tuple) and value}
    if (
        len(lengths) != 1
        or lengths == {1}
        or any(isinstance(v, torch.Tensor) and v.numel() > 1 for v in values)
    ):
        return None

    def part(start: int, end: int, value: Any) -> Any:
        return list(value[start:end]) if isinstance(value, list | tuple) and value else value

    count = lengths.pop()
    calls = min(count, most or count)
    starts = [count * call // calls for call in range(calls + 1)]
    return (
        (
            tuple(part(start, end, value) for value in args),
            {name: part(start, end, value) for name, value in kwargs.items()},
        )
        for start, end in itertools.pairwise(starts)
    )


def run_pieces(
    operation: Any,
    pieces: Iterator[tuple[tuple[Any, ...], dict[str, Any]]],
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> Any:
    """Runs the pieces of an operation in turn; returns what the whole operation would return."""
    results: list[Any] = []
    for args, kwargs in pieces:
        result = run(args, kwargs)
        results += result if isinstance(result, list | tuple) else ()
    return results if operation._schema.returns else None


def touched_by(
    addresses: AddressMap, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[set[int], set[int]]:
    """The places that an operation reads, and the places that it writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    if is_higher_order(operation):  # Without a schema, it may write all of its arguments.
        for value in tree_leaves((args, kwargs)):
            _collect(addresses, value, writes)
        return reads, writes
    written_positions, written_names = written_arguments(operation)
    if _is_fused(operation) and kwargs.get("grad_scale") is None:
        # The schema says that gradients are written, but that is so only if they are unscaled.
        written_positions -= {1}
    for position, value in enumerate(args):
        _collect(addresses, value, writes if position in written_positions else reads)
    for name, value in kwargs.items():
        _collect(addresses, value, writes if name in written_names else reads)
    return reads, writes


@cache
def _is_fused(operation: Any) -> bool:
    return bool(operation._schema.name.startswith("aten::_fused_"))


def _collect(addresses: AddressMap, value: Any, into: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        into.update(addresses.element_places(value))
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(addresses, item, into)


def touches_none(addresses: AddressMap, values: Iterable[Any]) -> bool:
    """Whether it is plain from their addresses that no tensor among `values` is in a chunk. Most
    operations of a step are like that, and this costs less than to look at their schemas."""
    for value in values:
        kind = type(value)
        if kind in _WITHOUT_TENSORS:
            continue
        if kind is list or kind is tuple:
            if not touches_none(addresses, value):
                return False
        elif kind not in _PLAIN or _may_be_in_range(addresses, value):
            return False
    return True


def _may_be_in_range(addresses: AddressMap, tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return True
    return addresses.base <= tensor.data_ptr() < addresses.end


@cache
def only_views(operation: Any) -> bool:
    """Whether an operation reads no element, because its results are views of its arguments."""
    if is_higher_order(operation):
        return False
    aliases = [result.alias_info for result in operation._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def name_of(operation: Any) -> str:
    """A human-readable name of an operation."""
    return str(operation) if is_higher_order(operation) else str(operation.name())


def has_own_dispatch(types: Any) -> bool:
    """Whether the class of one of an operation's tensors has its own `__torch_dispatch__`."""
    return any(
        kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for kind in types
    )


def are_fake(types: Any) -> bool:
    """Whether one of an operation's tensors is fake. It has no addresses, and torch uses it to find
    out what the operation returns (as in a step of FSDP's parameters). The mode must run such an
    operation itself: torch raises an error if it returns NotImplemented."""
    return any(issubclass(kind, FakeTensor) for kind in types)
