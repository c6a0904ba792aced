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
        self.differences += 1
        if self.differences > 1:
            return
        places = {contents.reads[number] for number in difference.reads}
        part, what = batch.parts[0], "the options of its step"
        if not difference.work:
            part, what = self._first_in(batch, places)
        name, step = self._name_of(part.written[0][0]), part.options.step
        print(
            f"memtide: in rank {self._rank}, {what} of {name} differ from those of rank "
            f"{difference.rank} in step {step}: it makes this step by itself, and has copies of "
            "its own of what differs (said once)",
            file=sys.stderr,
        )

    def _first_in(self, batch: Batch, places: set[int]) -> tuple[Part, str]:
        for part in batch.parts:
            if self._geometry.place(part.gradient) in places:
                return part, "the gradients"
        for part in batch.parts:
            for number, (start, _) in enumerate(part.written):
                if self._geometry.place(start) in places:
                    return part, "the optimizer states" if number else "the values"
        return batch.parts[0], "the bytes beside those"
