"""The record of torch's allocator in a few iterations (proto/memtide/v1/allocator.proto), as Python
values.

Operations are numbered from the first one of the record. A block lives from the operation that
makes it to the last one that had begun when it was freed, both included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PHASES = ("other", "forward", "backward", "step")  # By their numbers in trace.proto.


@dataclass(frozen=True)
class Block:
    """One storage of torch's."""

    size_bytes: int
    birth: int | None  # An operation; None: it was there before the first one.
    death: int | None  # None: it was there at the end of the record.
    uses: tuple[
        int, ...
    ] = ()  # The operations that had it as an argument; the first ones, if many.
    kind: str | None = None  # The kind of its chunks, such as "parameter"; None: it is in none.

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Block:
        """From protobuf's JSON of the message."""
        birth, death = document.get("birth"), document.get("death")
        kind = str(document.get("kind", "")).removeprefix("CHUNK_KIND_").lower().replace("_", " ")
        return cls(
            size_bytes=int(document.get("size_bytes", 0)),
            birth=None if birth is None else int(birth),
            death=None if death is None else int(death),
            uses=tuple(map(int, document.get("uses", ()))),
            kind=kind if document.get("in_chunks") else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        document: dict[str, Any] = {"size_bytes": self.size_bytes, "uses": self.uses}
        if self.birth is not None:
            document["birth"] = self.birth
        if self.death is not None:
            document["death"] = self.death
        if self.kind is not None:
            kind = self.kind.upper().replace(" ", "_")
            document |= {"in_chunks": True, "kind": f"CHUNK_KIND_{kind}"}
        return document


@dataclass(frozen=True)
class Operation:
    """One operation of torch's that may read or write elements: views are none."""

    name: str
    phase: str  # One of PHASES.


@dataclass(frozen=True)
class AllocatorRecord:
    """The operations of a few iterations, and all blocks that were seen in them."""

    operations: tuple[Operation, ...] = ()
    iteration_ends: tuple[int, ...] = ()  # The number of the first operation after each.
    blocks: tuple[Block, ...] = ()  # In the order of their births.
    # Blocks, bytes and uses that the limits on a record left out.
    blocks_left_out: int = 0
    bytes_left_out: int = 0
    uses_left_out: int = 0

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> AllocatorRecord:
        """From protobuf's JSON of the message. ValueError: an operation has a name that is not
        there."""
        names = document.get("names", ())
        operations = [divmod(int(each), len(PHASES)) for each in document.get("operations", ())]
        if any(name >= len(names) for name, _ in operations):
            raise ValueError(f"an operation's name is not one of the {len(names)} of the record")
        return cls(
            operations=tuple(Operation(names[name], PHASES[phase]) for name, phase in operations),
            iteration_ends=tuple(map(int, document.get("iteration_ends", ()))),
            blocks=tuple(map(Block.of_json, document.get("blocks", ()))),
            blocks_left_out=int(document.get("blocks_left_out", 0)),
            bytes_left_out=int(document.get("bytes_left_out", 0)),
            uses_left_out=int(document.get("uses_left_out", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        names = {name: at for at, name in enumerate(dict.fromkeys(o.name for o in self.operations))}
        return {
            **vars(self),
            "names": list(names),
            "operations": [
                names[each.name] * len(PHASES) + PHASES.index(each.phase)
                for each in self.operations
            ],
            "blocks": [block.as_json() for block in self.blocks],
        }

    def iterations(self) -> list[range]:
        """The numbers of the operations of each complete iteration."""
        return [range(start, end) for start, end in pairwise((0, *self.iteration_ends))]
