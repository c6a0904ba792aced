"""The figures that memtide promises: what each is, its goal, and how samples become a verdict.

The only place that knows goals. A benchmark program prints pairs of samples (limit, product); here
they become one value by the figure's measure, over the pairs that were taken while the machine was
quiet.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# In CPUs: where other processes use more, a pair measures them. RoundsOptions::quiet is the same.
QUIET_CPUS = 0.15
ENOUGH_PAIRS = 5


@dataclass(frozen=True)
class Pair:
    """The samples of one round. `limit` is zero in figures that have none."""

    limit: float
    product: float
    others_cpus: float


class Measure(enum.Enum):
    """How one pair becomes one value."""

    SHARE = enum.auto()  # product / limit.
    SPEEDUP = enum.auto()  # limit / product, where both are times.
    EXTRA = enum.auto()  # product - limit.
    ALONE = enum.auto()  # The product without a limit.


_FORMULAS: dict[Measure, Callable[[Pair], float]] = {
    Measure.SHARE: lambda pair: pair.product / pair.limit,
    Measure.SPEEDUP: lambda pair: pair.limit / pair.product,
    Measure.EXTRA: lambda pair: pair.product - pair.limit,
    Measure.ALONE: lambda pair: pair.product,
}


@dataclass(frozen=True)
class Figure:
    """A promise. Samples are in `sample_unit`; the value and the goal are in `unit`."""

    name: str
    title: str
    measure: Measure
    goal: float
    sample_unit: str
    unit: str = "x"
    at_least: bool = field(kw_only=True, default=False)

    def met_by(self, value: float) -> bool:
        return value >= self.goal if self.at_least else value <= self.goal


def _speed(name: str, title: str, goal: float, sample_unit: str = "GB/s") -> Figure:
    return Figure(name, title, Measure.SHARE, goal, sample_unit, at_least=True)


# Recorded training runs (bench/traces). No two iterations of "moe" use the same experts.
TRACES = ("gpt", "bert", "resnet", "encoder_decoder", "lora", "moe")


def _played(card: str, name: str, goal_ms: float) -> tuple[Figure, ...]:
    """The figures of a GPT of 1.2 B in a quarter of its states' memory on a card that is played."""
    figure = f"gpu_model.{card}"
    return (
        Figure(f"{figure}.step", f"{name} played, a quarter", Measure.ALONE, goal_ms, "ms", "ms"),
        Figure(f"{figure}.link", "its step against its bytes' time", Measure.SHARE, 1.15, "ms"),
        Figure(f"{figure}.maps", "its maps a step", Measure.ALONE, 6, "", ""),
        Figure(f"{figure}.calls", "its calls to the daemon a step", Measure.ALONE, 5, "", ""),
    )


def _policy(trace: str) -> tuple[Figure, ...]:
    """The figures of the bytes that an iteration moves; the limit is what another policy moves."""

    def against(other: str, title: str, goal: float) -> Figure:
        name = f"policy.{trace}.{other}"
        return Figure(name, f"{trace}: bytes moved, against {title}", Measure.SHARE, goal, "MiB")

    if trace == "moe":
        return (against("optimum", "the least possible", 1.3), against("lru", "LRU", 1.0))
    return (
        against("optimum", "the least possible", 1.05),
        against("lru", "LRU", 0.6),
        against("patrickstar", "PatrickStar's rule", 0.9),
    )


def _frontier(percent: int, goal: float) -> Figure:
    """The speed in device memory of so much of the states, against all resident."""
    title = f"Llama 8B shape, {percent}% of the states on the device, against all resident"
    return Figure(f"plans.frontier_{percent}", title, Measure.SPEEDUP, goal, "s", at_least=True)


FIGURES: tuple[Figure, ...] = (
    _speed("copy.device.1", "copy to device, 64 MiB, against a bare loop", 0.95),
    _speed("copy.device.2", "the same, both directions at once", 0.95),
    _speed("copy.mover.1", "copy to device through the mover", 0.95),
    _speed("copy.mover.2", "the same, both directions at once", 0.95),
    _speed("hash.pieces", "digests of pieces of 1 MiB, one core, against reading", 0.8),
    _speed("hash.sums", "checksums of 1 MiB, one core, against reading", 0.9),
    Figure(
        "verify.cpu",
        "CPU time of a named job's step, verified, against unverified",
        Measure.SHARE,
        1.05,
        "s",
    ),
    Figure("durable.each", "a step of a durable job, against a named one", Measure.SHARE, 1.5, "s"),
    Figure("durable.each_bytes", "its bytes to SSD", Measure.SHARE, 1.5, "MiB"),
    Figure("durable.tenth", "the same, with each tenth step", Measure.SHARE, 1.1, "s"),
    Figure("durable.tenth_bytes", "its bytes to SSD", Measure.SHARE, 1.1, "MiB"),
    _speed("staging.in", "copy to a fake GPU, 64 MiB unpinned, against pinned", 0.85),
    _speed("staging.out", "the same from it", 0.85),
    _speed("ssd.write.64", "SSD write, 64 MiB, against bare io_uring", 0.95),
    _speed("ssd.read.64", "SSD read, 64 MiB", 0.95),
    Figure("ssd.cpu.64", "daemon's CPU time for it", Measure.ALONE, 15, "ms/GB", "ms/GB"),
    _speed("ssd.write.4", "SSD write, 4 MiB", 0.95),
    _speed("ssd.read.4", "SSD read, 4 MiB", 0.95),
    Figure("ssd.cpu.4", "daemon's CPU time for it", Measure.ALONE, 15, "ms/GB", "ms/GB"),
    Figure("rpc.fetch", "resident fetch, against an empty call", Measure.SHARE, 1.25, "us"),
    Figure("rpc.bytes_copied", "bytes copied by it", Measure.ALONE, 0, "B", "B"),
    Figure(
        "rpc.batch_fetch",
        "16 fetches in one call, against 16 calls",
        Measure.SPEEDUP,
        5,
        "us",
        at_least=True,
    ),
    Figure(
        "rpc.batch_allocate",
        "16 allocations in one call",
        Measure.SPEEDUP,
        5,
        "us",
        at_least=True,
    ),
    Figure(
        "client.cached_acquire", "acquire and release of a held lease", Measure.ALONE, 1, "us", "us"
    ),
    Figure(
        "client.touch",
        "page fault that leases a chunk, beyond the lease",
        Measure.EXTRA,
        30,
        "us",
        "us",
    ),
    Figure("client.page_faults", "page faults a chunk use, client", Measure.ALONE, 8, "", ""),
    Figure("daemon.page_faults", "page faults a chunk use, daemon", Measure.ALONE, 8, "", ""),
    Figure("train.step", "GPT step, all on device, against torch", Measure.SHARE, 1.05, "s"),
    Figure("small_pools.eighth", "small models, an eighth of the states", Measure.SHARE, 1.5, "x"),
    Figure("small_pools.quarter", "a quarter of the states", Measure.SHARE, 1.25, "x"),
    Figure("small_pools.fits", "all fits", Measure.SHARE, 1.03, "x"),
    Figure("fits.cpu", "CPU seconds of such a step, no flag", Measure.SHARE, 1.02, "x"),
    Figure("small_pools.bytes_eighth", "its bytes by the least", Measure.SHARE, 1.3, "x"),
    Figure("small_pools.bytes_quarter", "the same, a quarter fits", Measure.SHARE, 1.2, "x"),
    Figure(
        "net.step", "small GPT step, fake GPU, all fits, against torch", Measure.SHARE, 1.05, "ms"
    ),
    Figure("net.step_128", "the same, 24 layers of width 128", Measure.SHARE, 1.05, "ms"),
    Figure("net.step_512", "the same, 24 layers of width 512", Measure.SHARE, 1.05, "ms"),
    Figure("net.operation", "an operation of width 128's step", Measure.EXTRA, 1.5, "us", "us"),
    Figure("net.step_quarter", "width 128, a quarter of it fits", Measure.SHARE, 5, "ms"),
    Figure("net.operation_quarter", "an operation of that step", Measure.ALONE, 3, "us", "us"),
    Figure("net.seen_quarter", "its operations seen, with leaf modules", Measure.SHARE, 0.65, ""),
    *_played("h100", "H100", 245),
    *_played("h200", "H200", 180),
    Figure("compiled.step", "compiled GPT step, fake GPU, against it", Measure.SHARE, 1.05, "ms"),
    Figure("compiled.cpu", "CPU time of the script for it", Measure.SHARE, 1.05, "ms"),
    Figure("losses.bf16_moments", "GPT's loss with bf16 moments", Measure.SHARE, 1.01, "nats"),
    Figure("losses.master", "the same in bf16 with fp32 master", Measure.SHARE, 1.01, "nats"),
    Figure("losses.stochastic", "the same, stochastic rounding", Measure.SHARE, 1.01, "nats"),
    Figure(
        "steps.arithmetic",
        "AdamW's step, all on SSD, against copying the same",
        Measure.SPEEDUP,
        0.9,
        "s",
        at_least=True,
    ),
    Figure("steps.mmap", "the same, against mmap", Measure.SPEEDUP, 1.8, "s", at_least=True),
    Figure("steps.bf16_moments", "the same with bf16 moments", Measure.SHARE, 0.75, "s"),
    Figure("steps.half_in_host", "half of it in host memory", Measure.SHARE, 0.6, "s"),
    Figure(
        "peers.zero_infinity",
        "GPT step, all on SSD, against ZeRO-Infinity",
        Measure.SPEEDUP,
        2,
        "s",
        at_least=True,
    ),
    Figure(
        "engine.resident",
        "engine, chunks at rest, one core",
        Measure.ALONE,
        500_000,
        "events/s",
        "events/s",
        at_least=True,
    ),
    Figure(
        "engine.moving",
        "engine, every chunk moving, one core",
        Measure.ALONE,
        500_000,
        "events/s",
        "events/s",
        at_least=True,
    ),
    Figure(
        "engine.decision",
        "an event, 100,000 chunks, a quarter fits",
        Measure.ALONE,
        20,
        "us",
        "us",
    ),
    Figure("engine.table_bytes", "engine's tables, a chunk", Measure.ALONE, 512, "B", "B"),
    Figure(
        "placement.stall",
        "GPT step's stalls, against LRU without hints",
        Measure.SHARE,
        0.25,
        "s",
    ),
    Figure(
        "placement.efficiency",
        "plain GPT step, against one under memtide",
        Measure.SPEEDUP,
        0.85,
        "s",
        at_least=True,
    ),
    Figure("ranks.bytes", "states of 4 DDP ranks, against one's", Measure.SHARE, 1.05, "MiB"),
    Figure("ranks.bytes_ssd", "the same in a host pool of 64 MiB", Measure.SHARE, 1.05, "MiB"),
    Figure("ranks.bytes_masters", "bf16 with fp32 masters", Measure.SHARE, 1.05, "MiB"),
    Figure("ranks.cpu", "CPU time of the step of 4 ranks, against one's", Measure.SHARE, 1.6, "s"),
    Figure("ranks.cpu_ssd", "the same in a host pool of 64 MiB", Measure.SHARE, 1.6, "s"),
    Figure("ranks.cpu_search", "to look for equals in vain", Measure.SHARE, 1.01, "s"),
    Figure("ranks.reads", "8 ranks read a chunk at once", Measure.SHARE, 1.02, "MiB"),
    Figure("ranks.unlike", "results that differ from plain DDP's", Measure.ALONE, 0, "", ""),
    Figure("ranks.found", "altered gradients that are named", Measure.SHARE, 1, "", at_least=True),
    Figure(
        "resume.first_step",
        "from kill -9 to the end of the first step, beyond a step",
        Measure.EXTRA,
        5,
        "s",
        "s",
    ),
    Figure(
        "host.balloon",
        "balloon of three quarters of the pool, against writing as much",
        Measure.SHARE,
        1.5,
        "s",
    ),
    Figure(
        "host.reclaim",
        "half of a full pool reclaimed for a second job, against writing and filling it",
        Measure.SHARE,
        1.5,
        "s",
    ),
    *(figure for trace in TRACES for figure in _policy(trace)),
    Figure(
        "plans.exhaustive",
        "activation plan of 8 blocks, against the best of all",
        Measure.SHARE,
        1.05,
        "s",
    ),
    Figure(
        "plans.lower_bound_96",
        "activation plan of 96 blocks, against a lower bound",
        Measure.SHARE,
        1.1,
        "s",
    ),
    Figure("plans.search_s_96", "CPU time of its search", Measure.ALONE, 1, "s", "s"),
    Figure(
        "plans.best_forced",
        "activation plan, against the best without a search, at worst",
        Measure.SHARE,
        1.01,
        "s",
    ),
    Figure(
        "plans.best_forced_gain",
        "the same, where it gains most",
        Measure.SPEEDUP,
        1.1,
        "s",
        at_least=True,
    ),
    *(
        _frontier(percent, goal)
        for percent, goal in ((10, 0.8), (15, 0.88), (25, 0.93), (40, 0.97), (60, 0.99))
    ),
    *(
        Figure(f"activations.{what}_{link}", f"{title}, {link} link", Measure.SHARE, goal, unit)
        for link in ("fast", "slow")
        for what, title, goal, unit in (
            ("peak", "4 times the sequence, bytes against the short one's", 1.1, "MiB"),
            ("step", "its step, against computing or traffic", 1.15, "s"),
        )
    ),
    Figure(
        "activations.predicted",
        "a planned step, predicted against measured",
        Measure.ALONE,
        0.05,
        "",
        "",
    ),
    Figure(
        "activations.all_fits",
        "CPU time of a step with a budget that holds all, against none",
        Measure.SHARE,
        1.005,
        "s",
    ),
    Figure(
        "activations.largest_batch",
        "batch that trains in a cgroup of 2 GiB, against plain torch",
        Measure.SHARE,
        4,
        "",
        at_least=True,
    ),
    Figure(
        "activations_on_ssd.step",
        "8 times the host memory, against computing or the drive",
        Measure.SHARE,
        1.25,
        "s",
    ),
    Figure("idle.memory", "idle daemon's memory beyond pools", Measure.ALONE, 64, "MiB", "MiB"),
)


@dataclass(frozen=True)
class Verdict:
    """One judged figure. If `noisy`, too few pairs were taken on a quiet machine, so all count."""

    figure: Figure
    pairs: tuple[Pair, ...]
    value: float
    limit: float
    product: float
    others_cpus: float
    noisy: bool

    @property
    def met(self) -> bool:
        return self.figure.met_by(self.value)


def judge(figure: Figure, pairs: Sequence[Pair]) -> Verdict:
    """Takes medians over the quiet pairs, or over all if these are too few. Needs one pair."""
    quiet = [pair for pair in pairs if pair.others_cpus < QUIET_CPUS]
    # A figure with fewer than ENOUGH_PAIRS pairs is a count, which other processes do not change.
    noisy = len(quiet) < min(ENOUGH_PAIRS, len(pairs))
    counted = list(pairs) if noisy else quiet
    return Verdict(
        figure=figure,
        pairs=tuple(pairs),
        value=statistics.median(_FORMULAS[figure.measure](pair) for pair in counted),
        limit=statistics.median(pair.limit for pair in counted),
        product=statistics.median(pair.product for pair in counted),
        others_cpus=statistics.median(pair.others_cpus for pair in counted),
        noisy=noisy,
    )
