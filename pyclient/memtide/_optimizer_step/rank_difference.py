"""Says which parameter a rank steps by itself, and what differs from another rank."""

from __future__ import annotations

import sys
from collections.abc import Callable

from memtide._capi.shared_part import PartDifference
from memtide._optimizer_step.part_contents import PartContents
from memtide._optimizer_step.partition import Batch, Geometry, Part


class SaysDifference:
    """Says the first difference of a process, in a line on stderr."""

    def __init__(self, rank: int, geometry: Geometry, name_of: Callable[[int], str]) -> None:
        """`name_of`: the name of the parameter at an address."""
        self._rank = rank
        self._geometry = geometry
        self._name_of = name_of
        self.differences = 0  # Parts.

    def __call__(self, batch: Batch, contents: PartContents, difference: PartDifference) -> None:
        if not batch.parts:
            return  # It copies what no optimizer steps, such as a stage's older version.
        self.differences += 1
        if self.differences > 1:
            return
        places = {contents.reads[number] for number in difference.reads}
        parts, what = batch.parts[:1], "the options or the elements of the step"
        if not difference.work:
            parts, what = self._in_places(batch, places)
        print(
            f"memtide: in rank {self._rank}, {what} of {self._names_of(parts)} differ from those "
            f"of rank {difference.rank} in step {parts[0].options.step}: it makes this step by "
            "itself, and has copies of its own of what differs (said once)",
            file=sys.stderr,
        )

    def _names_of(self, parts: list[Part]) -> str:
        """The parameters of these parts. The daemon compares whole chunks, so where several lie in
        one, it is not known which of them differs."""
        names = list(dict.fromkeys(self._name_of(part.written[0][0]) for part in parts))
        return names[0] if len(names) == 1 else f"one of {names[0]} to {names[-1]}"

    def _in_places(self, batch: Batch, places: set[int]) -> tuple[list[Part], str]:
        """The parts that read one of these places, and as what."""
        by_gradient = [p for p in batch.parts if self._geometry.place(p.gradient) in places]
        if by_gradient:
            return by_gradient, "the gradients"
        for what, spans in (("values", slice(1)), ("optimizer states", slice(1, None))):
            parts = [
                part
                for part in batch.parts
                if any(self._geometry.place(start) in places for start, _ in part.written[spans])
            ]
            if parts:
                return parts, f"the {what}"
        return batch.parts[:1], "the bytes beside those"
