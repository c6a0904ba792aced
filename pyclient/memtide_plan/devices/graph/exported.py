"""The graph of operators of a torch module, by torch.export: what each operator computes and
passes, and its time by a device's rates.

Nothing is computed: sizes are those of fake tensors, and FLOPs those that torch's FlopCounterMode
counts for the same operators. An operator takes its FLOPs or its bytes by the device's rates,
whichever takes longer; a backward pass takes twice as long where training is planned.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide._plan_file.training import States
from memtide.errors import InvalidArgument, NotFound

from memtide_plan.devices.graph.operators import Graph, Operator, make_graph
from memtide_plan.estimate.work import Rates

# A backward pass computes two products of matrices for each one of the forward pass.
_BACKWARD_PER_FORWARD = 2.0


@dataclass(frozen=True)
class _Weight:
    """What one parameter or buffer has on a device."""

    state_bytes: float
    gradient_bytes: float


def graph_of_file(path: Path, rates: Rates, states: States | None) -> Graph:
    """The graph of what the function `example()` of a Python file returns: a module, and a tuple of
    the inputs that it is called with. The file runs, as an import would run it; what it raises
    passes through. NotFound: it cannot be read. InvalidArgument: there is no such function."""
    if not path.is_file():
        raise NotFound(f"the file {path} cannot be read")
    example = runpy.run_path(str(path), run_name="memtide_graph").get("example")
    if not callable(example):
        raise InvalidArgument(
            f"{path} has no function example(), which returns a module and a tuple of its inputs"
        )
    returned = example()
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InvalidArgument(
            f"example() of {path} returns {type(returned).__name__}; it must return a module and a "
            "tuple of its inputs"
        )
    module, arguments = returned
    return graph_of(module, arguments, rates, states=states)


def graph_of(
    module: Any,
    arguments: Sequence[Any],
    rates: Rates,
    *,
    keywords: Mapping[str, Any] | None = None,
    states: States | None = None,
) -> Graph:
    """The graph of `module(*arguments, **keywords)`. `states`: what training has for each
    parameter, in bytes; None plans inference, in which a weight has its own bytes.

    InvalidArgument: torch cannot export the module; the error has torch's first line."""
    import torch

    try:
        exported = torch.export.export(module, tuple(arguments), dict(keywords or {}))
    except (torch._dynamo.exc.TorchDynamoException, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(
            f"torch.export cannot see the operators of {type(module).__name__}: {reason}"
        ) from error
    weights = _weights(exported, states)
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    if not nodes:
        raise InvalidArgument(f"{type(module).__name__} has no operators to divide")
    first_reader = _first_readers(nodes, weights)
    names = {node.name for node in nodes}
    operators = []
    for node in nodes:
        held = [weights[name] for name in first_reader.get(node.name, ())]
        operators.append(_operator(node, rates, held, trains=states is not None))
    edges = [
        (source.name, node.name)
        for node in nodes
        for source in node.all_input_nodes
        if source.name in names
    ]
    return make_graph(operators, edges)


def _operator(node: Any, rates: Rates, held: Sequence[_Weight], *, trains: bool) -> Operator:
    passed = _bytes(node.meta.get("val"))
    passed += sum(_bytes(source.meta.get("val")) for source in node.all_input_nodes)
    # A view passes nothing.
    views = getattr(node.target, "is_view", False) or node.target is _getitem()
    memory_s = 0.0 if views else passed / rates.memory_bytes_per_s
    forward_s = max(_flop(node) / rates.flop_per_s, memory_s)
    output = _bytes(node.meta.get("val"))
    return Operator(
        name=node.name,
        forward_s=forward_s,
        backward_s=_BACKWARD_PER_FORWARD * forward_s if trains else 0.0,
        state_bytes=sum(weight.state_bytes for weight in held),
        saved_bytes=output if trains and not views else 0.0,
        output_bytes=output,
        gradient_bytes=sum(weight.gradient_bytes for weight in held),
    )


def _getitem() -> Callable[[Any, Any], Any]:
    import operator

    return operator.getitem


def _flop(node: Any) -> float:
    """What FlopCounterMode counts for the operator, which runs with fake tensors."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    arguments = torch.fx.node.map_arg(node.args, lambda source: source.meta["val"])
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        # The counter knows the kernels of GPUs alone.
        return float(sdpa_flop_count(*(tensor.shape for tensor in arguments[:3])))
    keywords = torch.fx.node.map_arg(node.kwargs, lambda source: source.meta["val"])
    leaves = torch.utils._pytree.tree_leaves((arguments, keywords))
    fakes = [leaf for leaf in leaves if isinstance(leaf, torch._subclasses.FakeTensor)]
    if not fakes:
        return 0.0
    with fakes[0].fake_mode, FlopCounterMode(display=False) as counter:
        node.target(*arguments, **keywords)
    return float(counter.get_total_flops())


def _bytes(value: Any) -> float:
    """All tensors of a node's value."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def _weights(exported: Any, states: States | None) -> dict[str, _Weight]:
    """By placeholder: what its parameter or buffer holds of a device."""
    signature = exported.graph_signature
    held = {}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        size = _bytes(node.meta.get("val"))
        if node.name in signature.inputs_to_parameters:
            parameter = exported.state_dict[signature.inputs_to_parameters[node.name]]
            gradient = 0.0
            if states is not None:
                trained = parameter.requires_grad
                size = parameter.numel() * (states.trained() if trained else states.weight)
                gradient = parameter.numel() * states.gradient if trained else 0.0
            held[node.name] = _Weight(size, gradient)
        elif node.name in signature.inputs_to_buffers:
            held[node.name] = _Weight(size, 0.0)
    return held


def _first_readers(nodes: Sequence[Any], weights: Mapping[str, _Weight]) -> dict[str, list[str]]:
    """By operator, the weights that it is the first to read: a weight is counted once."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for node in nodes:
        for source in node.all_input_nodes:
            if source.name in weights and source.name not in seen:
                seen.add(source.name)
                found.setdefault(node.name, []).append(source.name)
    return found
