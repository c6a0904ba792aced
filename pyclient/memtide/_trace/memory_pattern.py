"""How blocks of torch's allocator live: how much of them is alive at once, from where to where they
live, and how much of an iteration repeats the one before.

Lifetimes are in operations: 0, if a block was freed before the operation after its birth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from memtide._trace.allocator import AllocatorRecord, Block

# Kind of the chunks in which bytes lie; None: memtide does not manage them.
KindBytes = dict[str | None, int]
_LIVED = (
    "within an operation",  # The operation, or until the next one has used it.
    "within a phase",
    "forward to backward",
    "to the step or the next iteration",
    "across iterations",
)


@dataclass(frozen=True)
class Alive:
    """The bytes alive in one iteration, counted from birth to death, both included."""

    peak_bytes: int
    peak: int  # The first operation in which most bytes are alive.
    at_peak: KindBytes = field(default_factory=dict)
    # Bytes times the number of operations for which they are there.
    byte_operations: KindBytes = field(default_factory=dict)


@dataclass
class Total:
    """Some blocks together."""

    blocks: int = 0
    size_bytes: int = 0

    def add(self, block: Block) -> None:
        """Adds one block."""
        self.blocks += 1
        self.size_bytes += block.size_bytes


def alive(blocks: Iterable[Block], iteration: range) -> Alive:
    """The bytes of these blocks that are alive in an iteration. REQUIRES: it has operations."""
    changes = [0] * (len(iteration) + 1)
    lives = []
    byte_operations: Counter[str | None] = Counter()
    for block in blocks:
        first = max(iteration.start, -1 if block.birth is None else block.birth)
        end = iteration.stop if block.death is None else min(iteration.stop, block.death + 1)
        if first >= end:
            continue
        lives.append((first, end, block))
        changes[first - iteration.start] += block.size_bytes
        changes[end - iteration.start] -= block.size_bytes
        byte_operations[block.kind] += block.size_bytes * (end - first)
    now_bytes, peak_bytes, peak = 0, -1, iteration.start
    for number, change in zip(iteration, changes, strict=False):
        now_bytes += change
        if now_bytes > peak_bytes:
            peak_bytes, peak = now_bytes, number
    at_peak: Counter[str | None] = Counter()
    for first, end, block in lives:
        if first <= peak < end:
            at_peak[block.kind] += block.size_bytes
    return Alive(peak_bytes, peak, dict(at_peak), dict(byte_operations))


def born_in(record: AllocatorRecord, iteration: range) -> list[Block]:
    """The blocks that are born in an iteration, in their order."""
    return [b for b in record.blocks if b.birth is not None and b.birth in iteration]


def lifetime(block: Block, until: int) -> int | None:
    """Operations from a block's birth to its death; None: it is alive at operation `until`, or was
    before the record began."""
    if block.birth is None or block.death is None or block.death >= until:
        return None
    return block.death - block.birth


def pattern(record: AllocatorRecord, iteration: range, until: int) -> dict[str, Total]:
    """The blocks that are born in an iteration, by what they live through. `until`: the first
    operation after the next iteration."""
    totals = {name: Total() for name in _LIVED}
    for block in born_in(record, iteration):
        totals[_lived(record, block, iteration, until)].add(block)
    return totals


def _lived(record: AllocatorRecord, block: Block, iteration: range, until: int) -> str:
    lived = lifetime(block, until)
    if lived is None:
        return _LIVED[4]
    assert block.birth is not None
    if lived <= 1:
        return _LIVED[0]
    last = block.birth + lived
    if last not in iteration:
        return _LIVED[3]
    born, died = record.operations[block.birth].phase, record.operations[last].phase
    if born == died:
        return _LIVED[1]
    return _LIVED[2] if died == "backward" else _LIVED[3]


def repeated(before: Sequence[Block], untils: tuple[int, int], now: Sequence[Block]) -> float:
    """The share of births that two iterations have in common: in the same order, of the same size
    and the same lifetime. `untils`: of each, the first operation after the next iteration."""
    first, second = (
        [(block.size_bytes, lifetime(block, until)) for block in blocks]
        for blocks, until in zip((before, now), untils, strict=True)
    )
    longer = max(len(first), len(second))
    if not longer:
        return 1.0
    # Births that are alike at both ends need no search, which takes long where births are much
    # alike.
    begin = _alike(first, second)
    first, second = first[begin:], second[begin:]
    end = _alike(first[::-1], second[::-1])
    first, second = first[: len(first) - end], second[: len(second) - end]
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    return (begin + end + sum(match.size for match in blocks)) / longer


def _alike(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items two sequences have in common at their beginnings."""
    pairs = zip(first, second, strict=False)
    shorter = min(len(first), len(second))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
