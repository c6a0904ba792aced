"""Leases for compiled code on a GPU: what torch.compile makes runs without lease dispatch.

A compiled graph launches kernels that pass no dispatcher, so no mode sees what they use. But all of
it is among the graph's arguments: parameters and buffers, too, and in backward what was saved. So
their chunks are leased together while the graph runs, and the mode is off meanwhile: the operations
that are left in the graph are covered as well.

This is at the two places through which every graph passes that AOTAutograd has made, for whatever
backend: the wrapper around a forward graph, which knows what the graph writes, and the call of any
graph, where those of backward arrive. A graph that finds too little memory runs again, as an
operation does (lease_dispatch.py). For this its arguments are kept until it has run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memtide._capi.client import Places
from memtide._memory.device_oom import DeviceOomHandler, is_shortage
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide.errors import ResourceExhausted

_NO_BACKWARD = -1
# By this function torch tells its guards of modes that they need not mind.
_TELLS_OF_MODES = "set_is_in_mode_without_ignore_compile_internals"
Function = Callable[..., Any]


class CompiledLeases:
    """Leases chunks for the compiled graphs of any thread."""

    def __init__(self, memory: ManagedMemory, elastic: DeviceOomHandler) -> None:
        self._memory = memory
        self._addresses = memory.addresses
        self._ledger = memory.ledger
        self._novelty = memory.novelty
        self._elastic = elastic
        self._copies = memory.copies

    def wrapping_graphs(self, original: Function) -> Function:
        """_create_runtime_wrapper of AOTAutograd, which makes what calls one forward graph."""

        @functools.wraps(original)
        def _create_runtime_wrapper(
            compiled_fn: Function, *, runtime_metadata: Any, **options: Any
        ) -> Function:
            self._novelty.see_graph()
            call = original(compiled_fn, runtime_metadata=runtime_metadata, **options)
            inputs = enumerate(runtime_metadata.input_info)
            written = {index for index, one in inputs if one.mutates_data}

            @functools.wraps(call)
            def leased(args: list[Any]) -> Any:
                return self._run(call, args, written)

            return leased

        return _create_runtime_wrapper

    def calling_graphs(self, original: Function) -> Function:
        """call_func_at_runtime_with_args of AOTAutograd, which calls one graph."""

        @functools.wraps(original)
        def call_func_at_runtime_with_args(
            f: Function, args: Any, steal_args: bool = False, disable_amp: bool = False
        ) -> Any:
            # Any graph of forward that arrives here with the mode on was not wrapped as above, so
            # it is unknown what it writes.
            in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
            written = () if in_backward else range(len(args))
            return self._run(
                lambda own: original(f, own, steal_args=True, disable_amp=disable_amp),
                args if steal_args else list(args),
                written,
            )

        return call_func_at_runtime_with_args

    def building_guards(self, original: Function) -> Function:
        """CheckFunctionManager.__init__, which notes for which tensors compiled code holds. Torch
        2.9 compares their dispatch keys, to which an active mode adds some, and takes modes off
        while it compiles: each call compiled anew."""
        ignores_modes = hasattr(torch._C._dynamo.guards, _TELLS_OF_MODES)

        @functools.wraps(original)
        def __init__(manager: Any, *args: Any, **kwargs: Any) -> None:
            if ignores_modes or self._ledger.holding or not self._addresses.here:
                original(manager, *args, **kwargs)
                return
            mode_stack.push(LeaseDispatchMode(self._memory, self._elastic))
            try:
                original(manager, *args, **kwargs)
            finally:
                mode_stack.pop_alone(LeaseDispatchMode)

        return __init__

    def _run(self, call: Function, args: list[Any], written: Iterable[int]) -> Any:
        """Calls a graph, which may empty the list that it is given."""
        net = active_net()
        if net is None or not self._addresses.here:
            return call(args)
        writes = self._places(args[index] for index in written)
        reads = self._places(args) - writes
        leases = Places(reads), Places(writes)
        self._copies.before_writing(reads | writes)
        self._copies.before_unseen(args)

        def run() -> Any:
            with self._ledger.using(*leases), mode_stack.without(net):
                return call(list(args))

        try:
            result = run()
        except ResourceExhausted as error:
            raise self._too_many(len(reads | writes)) from error
        except RuntimeError as error:
            if not is_shortage(error) or writes:
                raise
            result = self._elastic.retry(error, run)
        args.clear()
        return result

    def _places(self, args: Iterable[Any]) -> set[int]:
        tensors = (part for each in args for part in _parts_of(each))
        return {place for each in tensors for place in self._addresses.element_places(each)}

    def _too_many(self, chunks: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"one compiled graph uses {chunks} chunks of {self._addresses.chunk_bytes >> 20} MiB "
            f"at once, and this session may lease {self._ledger.budget}; enlarge the device pool "
            "(--device-pool), or compile the model in smaller parts"
        )


def _parts_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor is made of."""
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            yield from _parts_of(getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value


def active_net() -> LeaseDispatchMode | None:
    """Lease dispatch, if it is on in this thread."""
    for index in range(torch._C._len_torch_dispatch_stack()):
        mode = torch._C._get_dispatch_stack_at(index)
        if isinstance(mode, LeaseDispatchMode):
            return mode
    return None
