"""One iteration's memory, moment by moment: the data of the tide picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from memtide._daemon.inspection import KINDS, TIERS


@dataclass(frozen=True)
class RankSample:
    """The memory that one of several ranks uses at a moment of this process."""

    rank: int
    leased_bytes: int
    own_host_bytes: int


@dataclass(frozen=True)
class Sample:
    """One moment of the sampled iteration."""

    seconds: float
    phase: str
    name: str
    own_host_bytes: int
    own_device_bytes: int
    kinds: dict[str, dict[str, int]]
    budget_bytes: dict[str, int]  # Bytes that the session's job may fill, by tier.
    stalled_s: float  # All stalls since the iteration began.
    kept_activation_bytes: int = 0  # A part of the own bytes: on a GPU, if there is one.
    ranks: tuple[RankSample, ...] = ()  # Where ranks share a job.
    # By cause: the script's waits since the iteration began, and the time in memtide's hooks.
    waits_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Tide:
    """The samples of one iteration, and the capacity of the pools."""

    iteration: int
    samples: list[Sample] = field(default_factory=list)
    pool_bytes: dict[str, int] = field(default_factory=dict)

    def tiers(self) -> list[str]:
        """The tiers that have a pool, fastest first."""
        return [tier for tier in TIERS if self.pool_bytes.get(tier)]

    def kinds(self, tier: str) -> dict[str, list[int]]:
        """Bytes on a tier at each moment, by kind. Kinds that are never allocated are left out."""
        return {
            kind: [_bytes(sample, kind, tier) for sample in self.samples]
            for kind in KINDS
            if any(_bytes(sample, kind, "allocated") for sample in self.samples)
        }

    def limits(self, tier: str) -> dict[str, list[int]]:
        """Limits in bytes at each moment: the budget, and the pool's capacity if that differs."""
        pool = self.pool_bytes[tier]
        budget = [sample.budget_bytes.get(tier, pool) for sample in self.samples]
        limits = {"budget": budget}
        if any(value != pool for value in budget):
            limits["pool limit"] = [pool] * len(budget)
        return limits

    def own(self) -> dict[str, list[int]]:
        """Bytes of the process outside chunks at each moment: activations, and the rest of what is
        on the host, and on a GPU it uses."""
        own_bytes = {"host": [sample.own_host_bytes for sample in self.samples]}
        device = [sample.own_device_bytes for sample in self.samples]
        if any(device):
            own_bytes["device"] = device
        where = list(own_bytes)[-1]
        kept_bytes = [sample.kept_activation_bytes for sample in self.samples]
        if not any(kept_bytes):
            return own_bytes
        # Two readings a moment apart: the process may have less by now than it kept.
        activations = list(map(min, kept_bytes, own_bytes[where]))
        own_bytes[where] = [a - b for a, b in zip(own_bytes[where], activations, strict=True)]
        return {"activations": activations, **own_bytes}

    def ranks(self) -> dict[int, dict[str, list[int]]]:
        """Bytes at each moment by rank: in leased chunks, which other ranks may lease, too, and on
        the host outside chunks. Empty where no ranks share a job."""
        at = [{use.rank: use for use in sample.ranks} for sample in self.samples]
        none = RankSample(0, 0, 0)
        return {
            rank: {
                "leased": [uses.get(rank, none).leased_bytes for uses in at],
                "own": [uses.get(rank, none).own_host_bytes for uses in at],
            }
            for rank in sorted(set().union(*at))
        }

    def is_like(self, phases: Sequence[str]) -> bool:
        """Whether the samples are of an iteration with moments of these phases."""
        return [sample.phase for sample in self.samples] == list(phases)

    def stalls_s(self) -> list[float]:
        """Seconds that fetches stalled in each moment; 0 for the last, where they are unknown."""
        return _by_moment([sample.stalled_s for sample in self.samples])

    def waits_s(self) -> dict[str, list[float]]:
        """The same of each wait of the script's (Sample.waits_s)."""
        names = self.samples[0].waits_s if self.samples else ()
        return {name: _by_moment([s.waits_s[name] for s in self.samples]) for name in names}


def _by_moment(sums: list[float]) -> list[float]:
    """The sum that each moment has added; 0 for the last."""
    return [*(after - before for before, after in pairwise(sums)), 0.0][: len(sums)]


def _bytes(sample: Sample, kind: str, tier: str) -> int:
    return sample.kinds.get(kind, {}).get(f"{tier}_bytes", 0)
