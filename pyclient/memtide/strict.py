"""What torch does past its dispatcher, or cannot do, where touches are not answered (a GPU).

Each function here takes what is replaced and returns what replaces it; `Runtime` puts them in place
together with the net (net.py).
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from memtide._native import Places
from memtide.adopt import Adopter
from memtide.elastic import Elastic
from memtide.errors import FailedPrecondition, OutOfRoom
from memtide.net import NetMode


def printing(adopter: Adopter, original: Callable[..., str]) -> Callable[..., str]:
    """torch._tensor_str._str, which looks at elements with all modes switched off."""

    @functools.wraps(original)
    def _str(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if not adopter.here:
            return original(tensor, *args, **kwargs)
        places = Places(adopter.element_places(tensor))
        try:
            with adopter.ledger.using(places, Places(())):
                return original(tensor, *args, **kwargs)
        except OutOfRoom:
            return (
                f"tensor(..., size={tuple(tensor.shape)}, more than can be on the device at once)"
            )

    return _str


def starting_threads(
    adopter: Adopter, elastic: Elastic, original: Callable[..., None]
) -> Callable[..., None]:
    """threading.Thread.start: a thread works under a net of its own, whatever its class."""

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        run = thread.run

        @functools.wraps(run)
        def run_in_net() -> None:
            with NetMode(adopter, elastic):
                run()

        thread.run = run_in_net  # type: ignore[method-assign]
        original(thread)

    return start


def compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile: torch leaves code as it is while a dispatch mode is active."""

    @functools.wraps(original)
    def compile_(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            "torch.compile has no effect on a GPU under memtide: operations run one by one, so "
            "that each can be given its memory",
            stacklevel=2,
        )
        return original(*args, **kwargs)

    return compile_


def capturing(_original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.cuda.CUDAGraph.capture_begin: a graph keeps addresses and takes no leases."""

    def capture_begin(_graph: Any, *_args: Any, **_kwargs: Any) -> None:
        raise FailedPrecondition(
            "CUDA graphs cannot be captured under memtide on a GPU: what they replay would find "
            "chunks that have left. Run the step without graphs"
        )

    return capture_begin


def check_visible_devices(at_start: str | None) -> None:
    """FailedPrecondition: the script chose its GPUs after CUDA had begun, which CUDA ignores."""
    now = os.environ.get("CUDA_VISIBLE_DEVICES")
    if now != at_start:
        raise FailedPrecondition(
            f"the script sets CUDA_VISIBLE_DEVICES to {now!r}, but memtide has begun to use CUDA "
            f"with {at_start!r}: set it before memtide starts (CUDA_VISIBLE_DEVICES={now} memtide "
            "run ...)"
        )
