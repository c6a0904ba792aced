"""Parameters that no optimizer steps: ranks that have the same keep them once, too.

Contents that ranks share come from parts (rank_parts.py). So chunks of parameters that a step
leaves alone, as those of a frozen model, are copied once, by a part that computes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from memtide._capi.client import Kind
from memtide._memory.arenas import Arenas
from memtide._optimizer_step.executor import StepCalls
from memtide._optimizer_step.partition import Batch, live_in
from memtide._optimizer_step.shadow_chunks import ShadowChunks
from memtide.errors import ResourceExhausted


class UnsteppedParameters:
    """Shares them among the ranks of a training, after steps that have left them alone."""

    def __init__(
        self,
        arenas: Arenas,
        calls: StepCalls,
        shadows: ShadowChunks,
        commit: Callable[[dict[int, int]], None],
    ) -> None:
        """`commit`: commits the new content of places, in these shadow chunks."""
        self._arenas = arenas
        self._calls = calls
        self._shadows = shadows
        self._commit = commit
        self._seen: set[int] = set()  # Places: each is shared at most once.

    def share(self, stepped: Collection[int]) -> None:
        """Shares the chunks of parameters that are not among the `stepped` places, and that no
        earlier step has left alone. REQUIRES: this process has no lease on them."""
        count = self._calls.copied_places
        if not count:
            return
        places = self._arenas.of(Kind.PARAMETER).places.difference(stepped, self._seen)
        self._seen |= places
        copies = live_in(sorted(places), self._arenas.storages.live(), self._calls.geometry)
        filled = [place for place, spans in copies.items() if spans]
        at_a_time = self._calls.depth * count
        for first in range(0, len(filled), at_a_time):
            some = filled[first : first + at_a_time]
            batches = [
                Batch(
                    copies=[span for place in batch for span in copies[place]],
                    writes=set(batch),
                    is_apart=True,
                )
                for batch in (some[at : at + count] for at in range(0, len(some), count))
            ]
            try:
                shadows = self._shadows.of(dict.fromkeys(some, Kind.PARAMETER))
                self._calls.make(batches, shadows)
            except ResourceExhausted:
                return  # Each rank keeps its own.
            self._commit(shadows)
