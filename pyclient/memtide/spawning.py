"""Processes that a script starts by torch.multiprocessing: each is managed as the script is.

`torch.multiprocessing.spawn` and `start_processes` call a function of the script in new processes,
one for each rank of a training. Not where they are forked: a child has its parent's torch, hooks
and all, and none of its session.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memtide.errors import MemtideError
from memtide.managed import Managed, Options


def install(managed: Managed) -> None:
    """Makes torch start processes as `managed` says. REQUIRES: torch is imported."""
    import torch.multiprocessing

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        original = module.start_processes  # type: ignore[attr-defined]
        if not hasattr(original, "_memtide"):
            module.start_processes = _starting(managed, original)  # type: ignore[attr-defined]


def _starting(managed: Managed, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        def start(options: Options | None) -> Any:
            rank = fn if options is None else _Rank(fn, options)
            return original(rank, args, nprocs, join, daemon, start_method)

        if start_method == "fork":
            return start(None)
        return managed.start_ranks(nprocs, start, waits=join)

    start_processes._memtide = True  # type: ignore[attr-defined]
    return start_processes


@dataclass(frozen=True)
class _Rank:
    """What a new process calls: the script's function, managed."""

    function: Callable[..., Any]
    options: Options

    def __call__(self, index: int, *args: Any) -> None:
        options = replace(self.options, wish=replace(self.options.wish, rank=index))
        try:
            managed = Managed(options, str(index), spawned=True)
        except MemtideError as error:
            print(f"memtide: rank {index} trains without memtide: {error}", file=sys.stderr)
            self.function(index, *args)
            return
        with managed:
            self.function(index, *args)
