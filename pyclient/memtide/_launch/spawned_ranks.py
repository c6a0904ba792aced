"""torch.multiprocessing.spawn and start_processes: they say which rank each new process is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from memtide._launch import ranks
from memtide._launch.ranks import Rank
from memtide._torch_hooks.patching.later_patches import LaterPatches

_MODULES = ("torch.multiprocessing", "torch.multiprocessing.spawn")


class StartRanks(Protocol):
    """Starts ranks."""

    def __call__(self, start: Callable[[], Any], *, waits: bool) -> Any:
        """Calls `start`. `waits`: it returns when the ranks have ended."""


def watch(start_ranks: StartRanks, patches: LaterPatches) -> None:
    """From torch's import on, start_processes starts its processes through `start_ranks`."""

    def replace(module: Any) -> None:
        if callable(getattr(module, "start_processes", None)):
            patches.replace(module, "start_processes", functools.partial(_starting, start_ranks))

    for name in _MODULES:
        patches.when_imported(name, replace)


def _starting(start_ranks: StartRanks, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        def start() -> Any:
            return original(_Rank(fn, nprocs), args, nprocs, join, daemon, start_method)

        return start_ranks(start, waits=join)

    return start_processes


@dataclass(frozen=True)
class _Rank:
    """The function that a new process calls: the script's, once it is known which rank it is."""

    function: Callable[..., Any]
    count: int

    def __call__(self, index: int, *args: Any) -> None:
        ranks.spawned = Rank(index, index, self.count)
        self.function(index, *args)
