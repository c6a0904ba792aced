"""The blocks of a model as one iteration of a trace shows them: which moments are whose passes,
what these take, and which chunks of parameters they read.

The process reports moments in groups, so that a moment which fetches chunks has the time of those
before it, too: sums over a row of blocks are right, and a single module's time is not. A forward
pass that recomputes activations is left out.

A block is one that the trace's profile of activations names or, without a profile, one of three or
more modules whose paths differ in their first number alone, such as layers.0, layers.1, layers.2.
A moment of no block belongs to the embedding if it comes before the first block, and else to the
head.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from memtide._trace.model import Moment, Stall, Trace

_FEWEST = 3
_NUMBERED = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")
EMBEDDING, HEAD = "embedding", "head"


@dataclass
class TracedBlock:
    """One block, as an iteration shows it."""

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    parameter_bytes: float = 0.0


@dataclass
class TracedIteration:
    """The last whole iteration of a trace."""

    blocks: list[TracedBlock]  # In the order of their forward passes.
    gradient_bytes: int
    optimizer_bytes: int
    parameter_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.parameter_bytes = round(sum(block.parameter_bytes for block in self.blocks))


def last_iteration(trace: Trace, named: Sequence[str]) -> TracedIteration:
    """`named`: the names of blocks in the profile; empty: there is none. REQUIRES: the trace has a
    whole iteration."""
    ends = trace.iteration_ends
    first, end = (ends[-2] if len(ends) > 1 else 0), ends[-1]
    spans = [(moment, stop) for moment, stop in trace.spans() if first <= moment.index < end]
    passes = [moment for moment, _ in spans if moment.phase in ("forward", "backward")]
    names = list(named) or _numbered(moment.name for moment in passes)
    owners = _owners(passes, names)
    again = _recomputing(passes, owners)
    passes = [moment for moment in passes if moment.index not in again]
    order = [EMBEDDING, *names, HEAD]
    blocks = {name: TracedBlock(name) for name in order}
    begin_s, end_s = spans[0][0].time_s, spans[-1][1]
    waits = _Waits(trace.stalls, begin_s, end_s)
    for moment, stop in spans:
        if moment.phase not in ("forward", "backward") or moment.index in again:
            continue
        block = blocks[owners[moment.index]]
        seconds = stop - moment.time_s - waits.within(moment.time_s, stop)
        if moment.phase == "forward":
            block.forward_s += max(0.0, seconds)
        else:
            block.backward_s += max(0.0, seconds)
    _divide(trace, passes, owners, blocks)
    moments = [moment for moment, _ in spans]
    return TracedIteration(
        [block for block in blocks.values() if block.parameter_bytes or block.name in names],
        gradient_bytes=_chunks(trace, moments, "gradient") * trace.chunk_bytes,
        optimizer_bytes=_chunks(trace, moments, "optimizer state") * trace.chunk_bytes,
    )


class _Waits:
    """Seconds in which the process waited for chunks, in an iteration."""

    def __init__(self, stalls: Iterable[Stall], begin_s: float, end_s: float) -> None:
        spans = [(stall.start_s, stall.start_s + stall.duration_s) for stall in stalls]
        self._stalls = [(b, e) for b, e in spans if b < end_s and e > begin_s]

    def within(self, begin_s: float, end_s: float) -> float:
        return sum(max(0.0, min(end_s, e) - max(begin_s, b)) for b, e in self._stalls)


def _numbered(paths: Iterable[str]) -> list[str]:
    """The repeated modules that these paths are in, in their order."""
    found = [match[0] for match in map(_NUMBERED.match, dict.fromkeys(paths)) if match]
    rows = Counter(name.rstrip("0123456789") for name in dict.fromkeys(found))
    return [n for n in dict.fromkeys(found) if rows[n.rstrip("0123456789")] >= _FEWEST]


def _owners(passes: Sequence[Moment], names: Sequence[str]) -> dict[int, str]:
    """The block of each moment of a pass."""
    owners: dict[int, str] = {}
    seen = False
    for moment in passes:
        inside = next((n for n in names if f"{moment.name}.".startswith(f"{n}.")), None)
        seen = seen or inside is not None or moment.phase == "backward"
        owners[moment.index] = inside or (HEAD if seen and names else EMBEDDING)
    # A module's backward pass is of the block that its forward pass is of.
    forward = {m.name: owners[m.index] for m in reversed(passes) if m.phase == "forward"}
    for moment in passes:
        if moment.phase == "backward":
            owners[moment.index] = forward.get(moment.name, owners[moment.index])
    return owners


def _recomputing(passes: Sequence[Moment], owners: dict[int, str]) -> set[int]:
    """The moments that compute again for a backward pass: those of one block alone, after one."""
    again: set[int] = set()
    rows = [list(row) for _, row in groupby(passes, lambda moment: moment.phase)]
    for row in rows[1:]:
        if row[0].phase == "forward" and len({owners[moment.index] for moment in row}) == 1:
            again.update(moment.index for moment in row)
    return again


def _divide(
    trace: Trace,
    passes: Sequence[Moment],
    owners: dict[int, str],
    blocks: dict[str, TracedBlock],
) -> None:
    """Divides the bytes of chunks of parameters among the modules that read them. Only chunks are
    known, so what is left free in one counts."""
    readers: dict[int, Counter[str]] = defaultdict(Counter)
    for moment in passes:
        if moment.phase == "forward":
            for chunk, _ in moment.uses:
                if chunk in trace.chunks and trace.chunks[chunk].kind == "parameter":
                    readers[chunk][owners[moment.index]] += 1
    for names in readers.values():
        for name, times in names.items():
            blocks[name].parameter_bytes += trace.chunk_bytes * times / names.total()


def _chunks(trace: Trace, moments: Iterable[Moment], kind: str) -> int:
    """How many chunks of a kind an iteration uses. Where it reads some and writes others, those
    are the shadow chunks of a step, which hold the same states."""
    used, read = set(), set()
    for moment in moments:
        for chunk, operation in moment.uses:
            if chunk in trace.chunks and trace.chunks[chunk].kind == kind:
                used.add(chunk)
                if operation == "read":
                    read.add(chunk)
    return len(read or used)
