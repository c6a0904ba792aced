"""Manages the processes that a script starts with torch.multiprocessing as it manages the script.

`torch.multiprocessing.spawn` and `start_processes` call a function of the script in new processes,
one for each rank of a training. Forked processes are not managed: they inherit torch with its
hooks, but not the session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

# Makes a new process a rank; takes the options of all ranks and the number of this one. It is
# pickled and sent to that process, so it must be a function of a module.
EnterRank = Callable[[Any, int], AbstractContextManager[None]]


class StartRanks(Protocol):
    """Starts `count` ranks."""

    def __call__(self, count: int, start: Callable[[Any], Any], *, waits: bool) -> Any:
        """Calls `start` with the options of the ranks, or with None if they are not managed.
        `waits`: `start` returns when the ranks have ended."""


def starting(
    start_ranks: StartRanks, enter_rank: EnterRank, original: Callable[..., Any]
) -> Callable[..., Any]:
    """torch.multiprocessing.start_processes: starts processes through `start_ranks`, each of which
    calls `enter_rank` before the script's function."""

    @functools.wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        def start(options: Any) -> Any:
            rank = fn if options is None else _Rank(fn, options, enter_rank)
            return original(rank, args, nprocs, join, daemon, start_method)

        if start_method == "fork":
            return start(None)
        return start_ranks(nprocs, start, waits=join)

    return start_processes


@dataclass(frozen=True)
class _Rank:
    """The function that a new process calls: the script's function in the context of its rank."""

    function: Callable[..., Any]
    options: Any
    enter: EnterRank

    def __call__(self, index: int, *args: Any) -> None:
        with self.enter(self.options, index):
            self.function(index, *args)
