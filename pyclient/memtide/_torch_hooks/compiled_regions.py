"""Regions that torch.compile makes of a script's functions, with leases for each.

A *compiled region* is one graph of operations that torch traces, compiles, and calls with all
tensors that it uses: the parameters of every module in it are among its arguments. So a region is
treated as a module is: its parameters are leased before its forward and its backward pass. On a GPU
compiled_leases.py then leases exactly what runs, with lease dispatch off.

A region's places are known before it is compiled. One whose parameters are more than may be leased
together is not: torch then runs its function as it is, and compiles the functions that this calls,
each by itself. So a large model is compiled by its blocks, and blocks of one class share the code.
Where even these are too large, the function runs uncompiled on a GPU, with a warning; in host
memory page faults serve a region of any size.

While compiled functions run, and are traced, module hooks are hidden: torch would trace them, too,
and compile once more whenever they come or go.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from memtide._capi.client import Places
from memtide._memory.address_map import AddressMap, address_of
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_references import TensorReference, reference_to
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.module_parameters import ModuleParameters
from memtide._torch_hooks.on_gpu.compiled_leases import active_net

Function = Callable[..., Any]
# The most calls with other tensors whose chunks a region knows. Few models have as many layers.
_MOST_KNOWN = 256


class CompiledRegions:
    """Knows the compiled regions of all threads."""

    def __init__(
        self, memory: ManagedMemory, module_hooks: ModuleHooks, before_call: Callable[[], None]
    ) -> None:
        """`before_call` is called before a compiled function, in which module hooks do not fire."""
        self._addresses = memory.addresses
        self._ledger = memory.ledger
        self._module_hooks = module_hooks
        self._warned: set[Any] = set()  # The code that runs uncompiled.
        self._closed = False
        self._before_call = before_call

    def close(self) -> None:
        """From now on, what is compiled runs as it is."""
        self._closed = True

    def calling_modules(self, original: Function) -> Function:
        """OptimizedModule.__call__, which warns of module hooks, and fires them once more."""

        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            leave = self._enter()
            try:
                return original(module, *args, **kwargs)
            finally:
                leave()

        return __call__

    def making_contexts(self, original: Function) -> Function:
        """OptimizeContext.__init__: an object of this class is behind each compiled function, and
        calls these functions before and after that."""

        @functools.wraps(original)
        def __init__(context: Any, *args: Any, **kwargs: Any) -> None:
            original(context, *args, **kwargs)
            context.enter_exit_hooks.append(self._enter)

        return __init__

    def compiling_graphs(self, original: Function) -> Function:
        """OutputGraph.call_user_compiler, which compiles one region."""

        @functools.wraps(original)
        def call_user_compiler(
            output: Any, gm: torch.fx.GraphModule, *inputs: Sequence[Any]
        ) -> Function:
            if not self._addresses.here or output.export:
                compiled: Function = original(output, gm, *inputs)
                return compiled
            code = output.root_tx.f_code
            parts = self._parts_of(gm)
            if self._is_too_large(parts[None]):
                inner = [part for kind, part in parts.items() if kind is not None]
                fits = any(part and not self._is_too_large(part) for part in inner)
                if self._ledger.strict and not fits:
                    self._warn(code, len(parts[None]))
                if self._ledger.strict or fits:
                    raise torch._dynamo.exc.SkipFrame("more chunks than may be leased together")
            graph = torch.fx.Graph()  # Backends may change the one that they are given.
            graph.output(graph.graph_copy(gm.graph, {}))
            region = _Region(self._addresses, code.co_name)
            # Backends may look at the tensors, or try kernels on them, and no mode is on meanwhile.
            with self._ledger.using(Places(parts[None]), Places(())):
                compiled = original(output, gm, *inputs)
            return self._running(region, compiled, lambda: torch.fx.GraphModule(gm, graph), code)

        return call_user_compiler

    def _running(
        self, region: _Region, compiled: Function, uncompiled: Callable[[], Function], code: Any
    ) -> Function:
        """A function that calls a region, `uncompiled` where it has become too large."""

        def run(*args: Any) -> Any:
            if self._closed or not self._addresses.here or not self._module_hooks.begin_forward():
                return compiled(*args)
            known = region.look_at(args)
            function = compiled
            if active_net() is not None and self._is_too_large(set(known.places.numbers)):
                self._warn(code, known.places.count)
                function = uncompiled()
            return self._module_hooks.run_region(known, lambda: function(*args))

        return run

    def _enter(self) -> Callable[[], None]:
        if self._closed or not self._addresses.here:
            return lambda: None
        self._before_call()
        self._module_hooks.hide()
        return self._module_hooks.show

    def _is_too_large(self, places: set[int]) -> bool:
        return not self._ledger.can_keep(places)

    def _parts_of(self, gm: torch.fx.GraphModule) -> dict[str | None, set[int]]:
        """The places that a graph uses, and those of each module in it that torch could compile by
        itself: of torch's own classes it compiles only what calls them."""
        parts: dict[str | None, set[int]] = {None: set()}
        inputs: dict[torch.fx.Node, range] = {}
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                example = getattr(node.meta.get("grapharg"), "example", None)
                if isinstance(example, torch.Tensor):
                    inputs[node] = self._addresses.element_places(example)
                    parts[None].update(inputs[node])
                continue
            used = [inputs[each] for each in node.all_input_nodes if each in inputs]
            for module, (_, kind) in (node.meta.get("nn_module_stack") or {}).items():
                if used and not torch._dynamo.trace_rules.check(kind.forward):
                    parts.setdefault(module, set()).update(*used)
        return parts

    def _warn(self, code: Any, chunks: int) -> None:
        if code in self._warned:
            return
        self._warned.add(code)
        warnings.warn(
            f"torch.compile leaves {code.co_qualname} (line {code.co_firstlineno} of "
            f"{code.co_filename}) as it is: it uses {chunks} chunks of "
            f"{self._addresses.chunk_bytes >> 20} MiB at once, and this session may lease "
            f"{self._ledger.budget}. Enlarge the device pool (--device-pool), or make a function "
            "of each part that is to be compiled",
            stacklevel=2,
        )


class _Region:
    """The chunks of one compiled region, for each set of tensors that it is called with: equal
    blocks are compiled once, and each has its own parameters."""

    def __init__(self, addresses: AddressMap, name: str) -> None:
        self._addresses = addresses
        self._name = name
        # By the addresses of managed tensors, and whether any is trained; the oldest use first.
        self._known: dict[tuple[tuple[int, ...], bool], ModuleParameters] = {}

    def look_at(self, args: Iterable[Any]) -> ModuleParameters:
        """The chunks under these arguments."""
        base, end = self._addresses.base, self._addresses.end
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        managed = [
            (address, each) for each in tensors if base <= (address := address_of(each)) < end
        ]
        addresses = [address for address, _ in managed]
        trained = torch.is_grad_enabled() and any(each.requires_grad for _, each in managed)
        leaves = [each for _, each in managed if each.is_leaf]
        key = tuple(addresses), trained
        known = self._known.pop(key, None)
        # Another tensor may have been made where one was before.
        if known is None or not _are_alive(known.parameters, leaves):
            known = ModuleParameters(self._name)
            known.addresses = addresses
            known.places = Places(
                {place for _, each in managed for place in self._addresses.element_places(each)}
            )
            known.trained = trained
            known.parameters = [reference_to(each) for each in leaves]
        self._known[key] = known
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return known


def _are_alive(references: list[TensorReference], tensors: list[torch.Tensor]) -> bool:
    """Whether these are the tensors that the references were made of."""
    if len(references) != len(tensors):
        return False
    pairs = zip(references, tensors, strict=True)
    return all(reference() is tensor for reference, tensor in pairs)
