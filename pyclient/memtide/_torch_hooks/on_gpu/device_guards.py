"""Replacements of functions that access GPU memory past torch's dispatcher, or cannot work there.

On a GPU there are no page faults, so lease dispatch (lease_dispatch.py) must see each access. Each
function here takes the replaced function and returns its replacement; patch_table.py lists them.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memtide._capi.client import Places
from memtide._memory.device_oom import DeviceOomHandler
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.own_mode import OwnMode
from memtide.errors import FailedPrecondition, ResourceExhausted

_GRAPHS_OF_INDUCTOR = "triton.cudagraphs"


def printing(memory: ManagedMemory, original: Callable[..., str]) -> Callable[..., str]:
    """torch._tensor_str._str, which reads elements with all dispatch modes disabled."""

    @functools.wraps(original)
    def _str(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if not memory.addresses.here:
            return original(tensor, *args, **kwargs)
        places = Places(memory.addresses.element_places(tensor))
        try:
            with memory.ledger.using(places, Places(())):
                return original(tensor, *args, **kwargs)
        except ResourceExhausted:
            return (
                f"tensor(..., size={tuple(tensor.shape)}, more than can be on the device at once)"
            )

    return _str


def starting_threads(
    memory: ManagedMemory, elastic: DeviceOomHandler, original: Callable[..., None]
) -> Callable[..., None]:
    """threading.Thread.start: each thread, of any class, runs under lease dispatch of its own."""

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        run = thread.run

        @functools.wraps(run)
        def run_under_dispatch() -> None:
            # Not by `with`: torch keeps flags of the whole process there, and puts back at the end
            # what they were at the beginning, when another thread may have been in another mode.
            mode = LeaseDispatchMode(memory, elastic)
            mode_stack.put_back(mode, 0)
            try:
                run()
            finally:
                mode_stack.take_off(mode)

        thread.run = run_under_dispatch  # type: ignore[method-assign]
        original(thread)

    return start


def compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, which compiles without CUDA graphs, or not at all where this torch lacks what
    compiled_leases.py needs. Warnings say so."""

    @functools.wraps(original)
    def compile_(*args: Any, **kwargs: Any) -> Any:
        if not OwnMode.compiles:
            warnings.warn(
                f"torch.compile has no effect on a GPU under memtide with torch "
                f"{torch.__version__}: operations run one by one, so that each can be given its "
                "memory",
                stacklevel=2,
            )
            return original(*args, **kwargs)
        without_graphs = _without_graphs(kwargs)
        if without_graphs != kwargs:
            warnings.warn(
                f"torch.compile(mode={kwargs.get('mode')!r}) makes no CUDA graphs under memtide on "
                "a GPU, since what they replay would find chunks that have left; all else that "
                "this mode asks for is done",
                stacklevel=2,
            )
        return original(*args, **without_graphs)

    return compile_


def _without_graphs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of torch.compile that ask for the same without CUDA graphs."""
    mode, options = kwargs.get("mode"), kwargs.get("options")
    if kwargs.get("backend", "inductor") != "inductor" or not (mode or options):
        return dict(kwargs)
    from torch._inductor import list_mode_options  # Takes a second, so only where it is needed.

    settings = dict(options or list_mode_options(mode))
    if not settings.pop(_GRAPHS_OF_INDUCTOR, False):
        return dict(kwargs)
    return {**kwargs, "mode": None, "options": settings}


def capturing(_original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.cuda.CUDAGraph.capture_begin, which is refused: a graph replays its addresses without
    leases."""

    def capture_begin(_graph: Any, *_args: Any, **_kwargs: Any) -> None:
        _refuse_graphs()

    return capture_begin


def entering_graphs(_original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.cuda.graph.__enter__, which makes a stream of its own the current one before it begins
    to capture. Refused there, a script that goes on without graphs would do so on that stream."""

    def __enter__(_graph: Any) -> None:
        _refuse_graphs()

    return __enter__


def _refuse_graphs() -> None:
    raise FailedPrecondition(
        "CUDA graphs cannot be captured under memtide on a GPU: what they replay would find chunks "
        "that have left. Run the step without graphs; torch.compile makes none in its default mode "
        "and as mode='max-autotune-no-cudagraphs'"
    )


def replicating(_original: Callable[..., Any]) -> Callable[..., Any]:
    """nn.DataParallel.replicate, which copies parameters past torch's dispatcher to other GPUs."""

    def replicate(_model: Any, _module: Any, device_ids: Any) -> None:
        raise FailedPrecondition(
            f"nn.DataParallel on {len(device_ids)} GPUs does not work under memtide, which manages "
            "one GPU in each process: use DistributedDataParallel (memtide run torchrun "
            f"--nproc-per-node={len(device_ids)} ...)"
        )

    return replicate


def initializing(memory: ManagedMemory, original: Callable[[], None]) -> Callable[[], None]:
    """torch.cuda._lazy_init, by which torch begins to use CUDA in a process. It knows whether torch
    itself has used CUDA before a fork, but memtide begins before the script does."""

    @functools.wraps(original)
    def _lazy_init() -> None:
        if not memory.addresses.here:
            raise FailedPrecondition(
                "this process was forked after memtide had begun to use CUDA, which does not work "
                "in a forked child: start it with torch.multiprocessing.get_context('spawn'), or "
                "run the script without memtide"
            )
        original()

    return _lazy_init


def check_visible_devices(at_start: str | None) -> None:
    """FailedPrecondition: the script chose its GPUs after CUDA had begun, which CUDA ignores."""
    now = os.environ.get("CUDA_VISIBLE_DEVICES")
    if now != at_start:
        raise FailedPrecondition(
            f"the script sets CUDA_VISIBLE_DEVICES to {now!r}, but memtide has begun to use CUDA "
            f"with {at_start!r}: set it before memtide starts (CUDA_VISIBLE_DEVICES={now} memtide "
            "run ...)"
        )


def warn_of_late_settings(at_start: Mapping[str, str | None]) -> None:
    """Warns of variables that the script has set after CUDA had read them."""
    for name, before in at_start.items():
        now = os.environ.get(name)
        if now not in (None, before):
            warnings.warn(
                f"the script sets {name} to {now!r}, but CUDA has begun with {before!r} under "
                f"memtide and does not read it again: set it before memtide starts ({name}={now} "
                "memtide run ...)",
                stacklevel=2,
            )
