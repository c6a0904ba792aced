"""The search for the chunk size that suits a list of parameters (docs/decisions/0011).

Each candidate size is evaluated without allocating. Parameters, gradients and optimizer states are
laid out in chunks as the arenas do it: one arena for parameters, one for gradients and one for each
state, each in the order of first use. Then the bytes that an iteration transfers are estimated.

- Waste: an arena's last chunk is partly unused. A tensor may span several chunks, so one that is
  larger than a chunk wastes nothing.
- Budget: chunks are leased whole, and the update of one parameter needs all chunks under it, its
  gradient and its states at once. The slots of these, and of one chunk of each arena that is
  prefetched meanwhile, retain nothing between two uses. The larger the chunks, the more bytes
  that is.
- Efficiency: a transfer takes the time of its bytes on the link, and a fixed time for each chunk.

The score is the estimated seconds in which the links transfer what an iteration uses and the faster
tiers did not retain. Where everything fits, it is the seconds to transfer everything once.

The search is a pure function: it uses no clock, no daemon and no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memtide._memory.alignment import SMALLEST_BYTES, aligned
from memtide._util.sizes import format_size

# CUDA and huge pages need multiples of the first, 2 MiB; beyond the last a transfer is no faster.
CANDIDATES = tuple(2**exponent << 20 for exponent in range(1, 7))
# With a device pool. There each chunk is mapped and leased besides (docs/decisions/0011).
CANDIDATES_ON_DEVICE = (*CANDIDATES, 128 << 20)
# The fewest slots that the fastest tier should have. With six, one operation on two threads fetched
# the same chunks again and again (docs/decisions/0011).
LEAST_SLOTS = 8
# The updates of the widest parameter for which a tier should have slots: one that is computed, and
# as much room for page faults and for what is prefetched meanwhile.
_UPDATES_PER_TIER = 2
# A size is clearly better if its estimated seconds are below this ratio of the present ones. A
# smaller gain is not worth starting a run again.
_CLEARLY = 0.95


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model."""

    size_bytes: int
    trained: bool = True
    # The bytes of each optimizer state. None: unknown, so Adam's two, as large as the parameter.
    states: tuple[int, ...] | None = None

    @property
    def states_bytes(self) -> tuple[int, ...]:
        """The bytes of each optimizer state, or Adam's if they are unknown."""
        return (self.size_bytes,) * 2 if self.states is None else self.states


@dataclass(frozen=True)
class _Link:
    bytes_per_s: float
    chunk_s: float  # The fixed seconds of each chunk, whatever its size.

    def seconds(self, size_bytes: int, chunk_bytes: int) -> float:
        return size_bytes / self.bytes_per_s + size_bytes / chunk_bytes * self.chunk_s


# The link into each tier, as measured. On another machine the ratio of the two costs is much the
# same, and the score is flat around the best size.
_LINKS = {
    # 16 lanes of PCIe 4. A transferred chunk causes 2.5 calls of an iteration, on a busy CPU
    # (docs/decisions/0011).
    "device": _Link(25e9, 1100e-6),
    # Reads of the SSD (docs/decisions/0007). A request costs two wake-ups of threads and an exit
    # to the hypervisor (bench/README.md, SSD).
    "host": _Link(1.7e9, 210e-6),
}


@dataclass(frozen=True)
class Estimate:
    """An estimate of training with one chunk size."""

    chunk_bytes: int
    chunks: int
    used_bytes: int
    slots: int  # In the fastest tier.
    step_slots: int  # In the tier in which optimizers are stepped.
    widest: int  # The most chunks that the update of one parameter needs.
    lacking: int  # Chunks that do not fit the last tier, or slots that a job lacks to be opened.
    moved_bytes: int  # Transferred into all tiers but the last, in an iteration.
    seconds: float  # An iteration's transfers.
    once_seconds: float  # Reading every chunk once from the SSD.

    @property
    def allocated_bytes(self) -> int:
        """The bytes of all chunks."""
        return self.chunks * self.chunk_bytes

    @property
    def waste(self) -> float:
        """The ratio of the allocated bytes that no tensor uses, from 0 to 1."""
        return 1 - self.used_bytes / self.allocated_bytes

    @property
    def shortage(self) -> tuple[int, int, bool]:
        """The bytes that the pools lack, the slots that the fastest pool lacks to have a choice of
        victims, and whether one update needs more chunks than there is room for."""
        lacking_bytes = self.lacking * self.chunk_bytes
        lacking_slots = max(0, LEAST_SLOTS - self.slots)
        return lacking_bytes, lacking_slots, self.widest > self.step_slots // _UPDATES_PER_TIER

    def __str__(self) -> str:
        text = (
            f"{format_size(self.chunk_bytes)}: {self.chunks} chunks, {self.waste:.1%} of them "
            f"waste, {self.slots} slots, {self.widest} for one update, "
            f"{format_size(self.moved_bytes)} to transfer in an iteration, {self.seconds:.3f} s"
        )
        if self.lacking:
            text += f"; the pools lack room for {self.lacking}"
        return text


@dataclass(frozen=True)
class Choice:
    """The estimate of the best size, and those of all candidates, smallest size first."""

    best: Estimate
    candidates: tuple[Estimate, ...]

    @property
    def chunk_bytes(self) -> int:
        """The best size."""
        return self.best.chunk_bytes


def search(
    parameters: Iterable[Parameter], pools: Mapping[str, int], *, min_slots: int
) -> Choice | None:
    """The best chunk size for these parameters, which are in the order of their adoption.

    `pools` has the bytes of each tier ("device", "host", "ssd") that they may use, and `min_slots`
    is the fewest slots of any tier with which the daemon opens a job. None: no parameter is large
    enough to be adopted, or there is no pool.
    """
    adopted = [p for p in parameters if p.size_bytes >= SMALLEST_BYTES]
    if not adopted or not any(pools.values()):
        return None
    candidates = tuple(
        estimate(adopted, pools, chunk_bytes, min_slots=min_slots)
        for chunk_bytes in (CANDIDATES_ON_DEVICE if pools.get("device") else CANDIDATES)
    )
    return Choice(min(candidates, key=_score), candidates)


def clearly_better(
    parameters: Iterable[Parameter], pools: Mapping[str, int], chunk_bytes: int, *, min_slots: int
) -> tuple[Estimate, Estimate] | None:
    """The estimates of `chunk_bytes` and of the best size; None: the best is not clearly better."""
    adopted = [p for p in parameters if p.size_bytes >= SMALLEST_BYTES]
    choice = search(adopted, pools, min_slots=min_slots)
    if choice is None:
        return None
    best = choice.best
    present = estimate(adopted, pools, chunk_bytes, min_slots=min_slots)
    better = best.shortage < present.shortage or best.seconds < _CLEARLY * present.seconds
    return (present, best) if better else None


def estimate(
    adopted: Sequence[Parameter], pools: Mapping[str, int], chunk_bytes: int, *, min_slots: int
) -> Estimate:
    """The estimate of one chunk size. REQUIRES: at least one parameter and one pool."""
    layout = _Layout(adopted, chunk_bytes)
    tiers = [name for name in ("device", "host", "ssd") if pools.get(name)]
    slots = [pools[name] // chunk_bytes for name in tiers]
    passing = layout.widest + layout.lists
    resident = moved = 0
    seconds = 0.0
    for name, count in zip(tiers[:-1], slots, strict=False):
        resident += max(0, count - passing)
        brought = max(0, layout.chunks - resident) * chunk_bytes
        moved += brought
        seconds += _LINKS[name].seconds(brought, chunk_bytes)
    return Estimate(
        chunk_bytes=chunk_bytes,
        chunks=layout.chunks,
        used_bytes=layout.used_bytes,
        slots=slots[0],
        step_slots=slots[tiers.index("host")] if "host" in tiers else slots[0],
        widest=layout.widest,
        lacking=max(0, layout.chunks - slots[-1], min_slots - min(slots)),
        moved_bytes=moved,
        seconds=seconds,
        once_seconds=_LINKS["host"].seconds(layout.chunks * chunk_bytes, chunk_bytes),
    )


def _score(estimate: Estimate) -> tuple[tuple[int, int, bool], float, float]:
    # A size that does not fit loses against every one that does.
    return estimate.shortage, estimate.seconds, estimate.once_seconds


class _Layout:
    """Where the tensors of each arena lie in chunks of one size."""

    def __init__(self, adopted: Sequence[Parameter], chunk_bytes: int) -> None:
        trained = [p for p in adopted if p.trained]
        parameters = _packed((p.size_bytes for p in adopted), chunk_bytes)
        # Backward makes the gradients of the last module first.
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
            state_chunks = sum(len(next(row)) for row in under[: len(p.states_bytes)])
            self.widest = max(self.widest, len(span) + len(gradient) + state_chunks)


def _packed(sizes_bytes: Iterable[int], chunk_bytes: int) -> list[range]:
    """The chunks under each tensor, packed as an arena packs them (arena.py)."""
    aligned_sizes = [aligned(size) for size in sizes_bytes]
    return [
        range((end - size) // chunk_bytes, (end - 1) // chunk_bytes + 1)
        for size, end in zip(aligned_sizes, accumulate(aligned_sizes), strict=True)
    ]
