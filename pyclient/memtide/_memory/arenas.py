"""All arenas of one client, and what is done with all of them together.

Parameters and gradients have an arena each. Optimizer states lie in *rows*: the first state of all
parameters in one arena, the second in another. So a chunk of each row holds the states of the same
parameters, as in the chunk lists of PatrickStar (arXiv 2108.05818, section 6), and a step needs
each chunk once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from memtide._capi.client import Client, Home, Kind
from memtide._capi.optimizer_step import MOST_STATES
from memtide._memory.activation_arena import ActivationArena
from memtide._memory.alignment import aligned
from memtide._memory.arena import Arena, Storages


class Arenas:
    """One arena for each kind, and for each row of states. An arena is made when it is first asked
    for; an Arena may be used from any thread."""

    def __init__(self, client: Client) -> None:
        self.storages = Storages(client)
        self._arenas: dict[tuple[Kind, int], Arena] = {}
        self._activations: dict[Home, ActivationArena] = {}
        self._coming_bytes = 0  # Expected in each row of states, for the newest optimizer.

    def of(self, kind: Kind, row: int = 0) -> Arena:
        """The arena of a kind; of states, that of their row. The last row has all further ones."""
        row = min(row, MOST_STATES - 1)
        if (kind, row) not in self._arenas:
            expected_bytes = self._coming_bytes if kind is Kind.OPTIMIZER_STATE else 0
            self._arenas[kind, row] = Arena(self.storages, kind, expected_bytes)
        return self._arenas[kind, row]

    def of_activations(self, home: Home) -> ActivationArena:
        """The arena of the activations whose chunks have this home."""
        if home not in self._activations:
            self._activations[home] = ActivationArena(self.storages, home)
        return self._activations[home]

    def discard_dead_activations(self) -> None:
        """Discards chunks whose activations are all dead, once they are many."""
        for arena in list(self._activations.values()):
            arena.discard_dead()

    def end_iteration(self) -> None:
        """Ends an iteration of the activations."""
        for arena in list(self._activations.values()):
            arena.end_iteration()

    @property
    def gradients(self) -> Arena:
        """The arena of gradients."""
        return self.of(Kind.GRADIENT)

    def chunks(self) -> int:
        """Chunks allocated over all kinds."""
        return sum(arena.chunks for arena in self._all())

    def chunks_of_steps(self) -> int:
        """Those of them that optimizer steps may use: activations are dead by then."""
        return sum(arena.chunks for arena in list(self._arenas.values()))

    def chunks_by_kind(self) -> Counter[Kind]:
        """Chunks allocated of each kind."""
        counts: Counter[Kind] = Counter()
        for (kind, _), arena in list(self._arenas.items()):
            counts[kind] += arena.chunks
        for activations in list(self._activations.values()):
            counts[Kind.ACTIVATION] += activations.chunks
        return counts

    def places(self) -> set[int]:
        """The places of all chunks."""
        return set().union(*(arena.places for arena in self._all()))

    def trim(self) -> None:
        """Returns chunks without a live tensor to the pools; of activations, only their memory."""
        for arena in self._all():
            arena.trim()

    def close(self) -> None:
        """Returns all chunks without a live tensor."""
        self.trim()
        for arena in self._activations.values():
            arena.close()

    def expect_states(self, sizes_bytes: Iterable[int]) -> None:
        """Announces that each row of states will get spans of these sizes, beside those that it
        has, so that it allocates consecutive chunks."""
        alignment_bytes = self.storages.alignment_bytes
        self._coming_bytes = sum(aligned(size, alignment_bytes) for size in sizes_bytes)
        for (kind, _), arena in self._arenas.items():
            if kind is Kind.OPTIMIZER_STATE:
                arena.expected_bytes = arena.live_bytes + self._coming_bytes

    def _all(self) -> list[Arena]:
        # A checkpoint's thread reads while others add.
        return [*list(self._arenas.values()), *list(self._activations.values())]
