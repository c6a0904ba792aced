"""Which size of chunk suits a list of parameters, and why.

Each candidate is tried dry: parameters, gradients and the optimizer's states are laid into chunks
as the arenas lay them, each kind in its own and each state of a parameter, too, in the order in
which they are first used; then what an iteration moves is estimated.

- Waste: what is allocated beyond what is used, at the end of each list's last chunk. A tensor lies
  over as many chunks as it needs, so one larger than a chunk wastes nothing.
- Budget: chunks are leased whole, and the update of one parameter needs all those under it, its
  gradient and its states at once. Its slots, and one chunk of each list that is brought
  meanwhile, keep nothing from one use to the next; the larger the chunks, the more bytes these are.
- Efficiency: a transfer costs its bytes over the link and a fixed time for each chunk.

The score is the estimated seconds in which the links bring what an iteration uses and the tiers
above did not keep. Where nothing has to be brought: the seconds to bring everything once.

A pure function: no clock, no daemon, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memtide.leases import limit_of
from memtide.packing import SMALLEST_BYTES, aligned
from memtide.sizes import format_size

# CUDA and huge pages need multiples of the first; beyond the last a transfer is no faster.
CANDIDATES = tuple(2**exponent << 20 for exponent in range(1, 7))
# Of the fastest tier. With six, one operation on two threads brought the same chunks again and
# again (docs/decisions/0011).
LEAST_SLOTS = 8
_LEAST_LENT = 4  # Of any tier: daemon/engine/state.h.
# Of the seconds that are estimated: what is less is no reason to start a run again.
_CLEARLY = 0.95


@dataclass(frozen=True)
class Parameter:
    """One of the list."""

    size_bytes: int
    trained: bool = True
    # Bytes of what the optimizer keeps for it. None: not known, so Adam's two, as large as itself.
    states: tuple[int, ...] | None = None

    @property
    def states_bytes(self) -> tuple[int, ...]:
        """Of each state, as far as it is known."""
        return (self.size_bytes,) * 2 if self.states is None else self.states


@dataclass(frozen=True)
class _Link:
    bytes_per_s: float
    chunk_s: float  # For each chunk, however small.

    def seconds(self, size_bytes: int, chunk_bytes: int) -> float:
        return size_bytes / self.bytes_per_s + size_bytes / chunk_bytes * self.chunk_s


# What brings chunks to a tier, as it was measured; on another machine the ratio of the two costs is
# much the same, and the score is flat around the best size.
_LINKS = {
    # 16 lanes of PCIe 4; the calls of an iteration, 2.5 for each chunk that is brought, on a busy
    # CPU (docs/decisions/0011).
    "device": _Link(25e9, 1100e-6),
    # Reads (docs/decisions/0007); two wake-ups of threads and an exit to the host for a request
    # (bench/README.md, SSD).
    "host": _Link(1.7e9, 210e-6),
}


@dataclass(frozen=True)
class Estimate:
    """What one size of chunk would mean."""

    chunk_bytes: int
    chunks: int
    used_bytes: int
    slots: int  # Of the fastest tier.
    step_slots: int  # Of the tier in which optimizers are stepped.
    widest: int  # Most chunks that the update of one parameter needs.
    lacking: int  # Chunks for which there is no room: in the last tier, or to begin with.
    moved_bytes: int  # Into all tiers but the last, in an iteration.
    seconds: float
    once_seconds: float

    @property
    def allocated_bytes(self) -> int:
        """Of all chunks."""
        return self.chunks * self.chunk_bytes

    @property
    def waste(self) -> float:
        """Share of what is allocated that no tensor uses."""
        return 1 - self.used_bytes / self.allocated_bytes

    @property
    def shortage(self) -> tuple[int, int, bool]:
        """Bytes that the pools lack, slots that the fastest one lacks to choose victims from,
        and whether one update needs more chunks than are leased at once."""
        lacking_bytes = self.lacking * self.chunk_bytes
        lacking_slots = max(0, LEAST_SLOTS - self.slots)
        return lacking_bytes, lacking_slots, self.widest > _leasable(self.step_slots)

    def __str__(self) -> str:
        said = (
            f"{format_size(self.chunk_bytes)}: {self.chunks} chunks, {self.waste:.1%} of them "
            f"waste, {self.slots} slots, {self.widest} for one update, "
            f"{format_size(self.moved_bytes)} to bring in an iteration, {self.seconds:.3f} s"
        )
        if self.lacking:
            said += f"; the pools lack room for {self.lacking}"
        return said


@dataclass(frozen=True)
class Choice:
    """The size that suits, and all that were looked at, smallest first."""

    best: Estimate
    candidates: tuple[Estimate, ...]

    @property
    def chunk_bytes(self) -> int:
        """Of the one that suits."""
        return self.best.chunk_bytes

    def reasons(self) -> str:
        """For people: a line for each candidate."""
        return "\n".join(
            f"{'*' if estimate is self.best else ' '} {estimate}" for estimate in self.candidates
        )


def search(parameters: Iterable[Parameter], pools: Mapping[str, int]) -> Choice | None:
    """The size of chunk that suits these parameters, in the order of their adoption, best.

    `pools` says how many bytes of each tier ("device", "host", "ssd") there are for them. None: no
    parameter is large enough to be adopted, or there is no pool.
    """
    adopted = [p for p in parameters if p.size_bytes >= SMALLEST_BYTES]
    if not adopted or not any(pools.values()):
        return None
    candidates = tuple(estimate(adopted, pools, chunk_bytes) for chunk_bytes in CANDIDATES)
    return Choice(min(candidates, key=_score), candidates)


def clearly_better(
    parameters: Iterable[Parameter], pools: Mapping[str, int], chunk_bytes: int
) -> tuple[Estimate, Estimate] | None:
    """What chunks of `chunk_bytes` mean, and of the size that suits; None: about the same."""
    adopted = [p for p in parameters if p.size_bytes >= SMALLEST_BYTES]
    choice = search(adopted, pools)
    if choice is None:
        return None
    best, present = choice.best, estimate(adopted, pools, chunk_bytes)
    better = best.shortage < present.shortage or best.seconds < _CLEARLY * present.seconds
    return (present, best) if better else None


def estimate(adopted: Sequence[Parameter], pools: Mapping[str, int], chunk_bytes: int) -> Estimate:
    """What chunks of one size would mean. REQUIRES: at least one parameter and one pool."""
    layout = _Layout(adopted, chunk_bytes)
    tiers = [name for name in ("device", "host", "ssd") if pools.get(name)]
    slots = [pools[name] // chunk_bytes for name in tiers]
    passing = layout.widest + layout.lists
    kept = moved = 0
    seconds = 0.0
    for name, count in zip(tiers[:-1], slots, strict=False):
        kept += max(0, count - passing)
        brought = max(0, layout.chunks - kept) * chunk_bytes
        moved += brought
        seconds += _LINKS[name].seconds(brought, chunk_bytes)
    return Estimate(
        chunk_bytes=chunk_bytes,
        chunks=layout.chunks,
        used_bytes=layout.used_bytes,
        slots=slots[0],
        step_slots=slots[tiers.index("host")] if "host" in tiers else slots[0],
        widest=layout.widest,
        lacking=max(0, layout.chunks - slots[-1], _LEAST_LENT - min(slots)),
        moved_bytes=moved,
        seconds=seconds,
        once_seconds=_LINKS["host"].seconds(layout.chunks * chunk_bytes, chunk_bytes),
    )


def _score(estimate: Estimate) -> tuple[tuple[int, int, bool], float, float]:
    # What does not fit is no choice as long as something does.
    return estimate.shortage, estimate.seconds, estimate.once_seconds


class _Layout:
    """Where each list's tensors lie in chunks of one size."""

    def __init__(self, adopted: Sequence[Parameter], chunk_bytes: int) -> None:
        trained = [p for p in adopted if p.trained]
        parameters = _packed((p.size_bytes for p in adopted), chunk_bytes)
        # The last module's come first.
        gradients = _packed((p.size_bytes for p in reversed(trained)), chunk_bytes)
        rows = [
            _packed(
                (p.states_bytes[row] for p in trained if len(p.states_bytes) > row), chunk_bytes
            )
            for row in range(max((len(p.states_bytes) for p in trained), default=0))
        ]
        every = (parameters, gradients, *rows)
        self.lists = sum(1 for spans in every if spans)
        self.chunks = sum(spans[-1].stop for spans in every if spans)
        self.used_bytes = sum(p.size_bytes for p in (*adopted, *trained))
        self.used_bytes += sum(sum(p.states_bytes) for p in trained)
        self.widest = max(len(span) for span in parameters)
        under = [iter(row) for row in rows]
        updated = [span for span, p in zip(parameters, adopted, strict=True) if p.trained]
        for p, span, gradient in zip(trained, updated, reversed(gradients), strict=True):
            own = sum(len(next(row)) for row in under[: len(p.states_bytes)])
            self.widest = max(self.widest, len(span) + len(gradient) + own)


def _packed(sizes_bytes: Iterable[int], chunk_bytes: int) -> list[range]:
    """The chunks under each tensor, as an arena lays them one after the other (arena.py)."""
    taken = [aligned(size) for size in sizes_bytes]
    return [
        range((end - size) // chunk_bytes, (end - 1) // chunk_bytes + 1)
        for size, end in zip(taken, accumulate(taken), strict=True)
    ]


def _leasable(slots: int) -> int:
    # The daemon's lease budget (daemon/engine/job.h), less what page faults need.
    return limit_of(slots - max(1, slots // 4))
