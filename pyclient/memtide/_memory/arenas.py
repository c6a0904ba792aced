"""All arenas of one client, and what is done with all of them together.

Parameters and gradients have an arena each. Optimizer states lie in *rows*: the first state of all
parameters in one arena, the second in another. So a chunk of each row holds the states of the same
parameters (parallel_layout.py), and a step needs each chunk once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from memtide._capi.client import Client, Home, Kind
from memtide._memory.activation_arena import ActivationArena
from memtide._memory.address_map import AddressMap, address_of
from memtide._memory.arena import Arena, Storages
from memtide._memory.parallel_layout import ParallelLayout, Position
from memtide._memory.tensor_parts import local_part

MOST_STATES = 3  # The rows of states. Adam with AMSGrad has three.


class Arenas:
    """One arena for each kind, and for each row of states. An arena is made when it is first asked
    for; an Arena may be used from any thread."""

    def __init__(self, client: Client) -> None:
        self.addresses = AddressMap(client)
        self.storages = Storages(client)
        self._arenas: dict[tuple[Kind, int], Arena] = {}
        self._activations: dict[Home, ActivationArena] = {}
        self._layout = ParallelLayout(client.properties.chunk_bytes, self.storages.alignment_bytes)

    def of(self, kind: Kind, row: int = 0) -> Arena:
        """The arena of a kind; of states, that of their row. The last row has all further ones."""
        row = min(row, MOST_STATES - 1)
        if (kind, row) not in self._arenas:
            self._arenas[kind, row] = Arena(self.storages, kind, make_room=self._close_all_but)
        return self._arenas[kind, row]

    def of_activations(self, home: Home) -> ActivationArena:
        """The arena of the activations whose chunks have this home."""
        if home not in self._activations:
            self._activations[home] = ActivationArena(self.storages, home, self._close_all_but)
        return self._activations[home]

    def state_places(self) -> set[int]:
        """The places of the chunks of optimizer states, of all rows."""
        rows = [
            arena for (kind, _), arena in list(self._arenas.items()) if kind == Kind.OPTIMIZER_STATE
        ]
        return set().union(*(arena.places for arena in rows))

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
        """Chunks that optimizer steps may use: activations are dead by then."""
        return sum(arena.chunks for arena in list(self._arenas.values()))

    def bytes_by_kind(self) -> dict[Kind, int]:
        """Bytes of the chunks that hold tensors, by kind. The chunks of steps beside them
        (shadow_chunks.py) are not counted."""
        counts: Counter[Kind] = Counter()
        for (kind, _), arena in list(self._arenas.items()):
            counts[kind] += arena.chunks
        for activations in list(self._activations.values()):
            counts[Kind.ACTIVATION] += activations.chunks
        return {kind: count * self.addresses.chunk_bytes for kind, count in counts.items()}

    def kind_at(self, address: int) -> Kind | None:
        """The kind of the chunk at an address; None: there is none."""
        if not self.addresses.in_range(address):
            return None
        arena = self.at(self.addresses.places_of(address, 1)[0])
        return None if arena is None else arena.kind

    def at(self, place: int) -> Arena | None:
        """The arena that has the chunk at a place; None: there is none."""
        return next((arena for arena in self._all() if place in arena.places), None)

    def number_at(self, place: int) -> int:
        """A number of the arena that has the chunk at a place, which is smaller for parameters than
        for states, and for these than for all others."""
        arenas = list(self._arenas.items())
        kind, row = next((key for key, arena in arenas if place in arena.places), (Kind.OTHER, 0))
        order = [Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.GRADIENT, Kind.ACTIVATION, Kind.OTHER]
        return order.index(kind) * MOST_STATES + row

    def places(self) -> set[int]:
        """The places of all chunks."""
        return set().union(*(arena.places for arena in self._all()))

    def trim(self) -> None:
        """Returns chunks without a live tensor to the pools; of activations, only their memory."""
        for arena in self._all():
            arena.trim()

    def close(self) -> None:
        """Returns all chunks without a live tensor."""
        for arena in self._all():
            arena.close()

    def lay_out(self, parameters: Iterable[torch.Tensor]) -> None:
        """Announces that an optimizer steps these parameters."""
        parts = [local_part(p) for p in parameters if p.requires_grad]
        base = self.addresses.base
        self._layout.extend(
            (address_of(p) - base, p.nbytes) for p in parts if self.addresses.manages(p)
        )

    def position_of(
        self, kind: Kind, parameter: torch.Tensor | None, size_bytes: int
    ) -> Position | None:
        """Where a gradient or a state of this size lies that belongs to a parameter. None: anywhere
        in its arena."""
        if parameter is None or not self.addresses.manages(part := local_part(parameter)):
            return None
        # A script may drop each gradient as soon as it has been used: then they need few chunks.
        if kind is Kind.GRADIENT and self.gradients.last_peak_bytes * 4 < self._layout.end * 3:
            return None
        offset = address_of(part) - self.addresses.base
        return self._layout.position_of(offset, part.nbytes, size_bytes)

    def _close_all_but(self, wanting: Arena) -> None:
        for arena in self._all():
            if arena is not wanting:
                arena.close_unless_busy()

    def _all(self) -> list[Arena]:
        # A checkpoint's thread reads while others add.
        return [*list(self._arenas.values()), *list(self._activations.values())]
