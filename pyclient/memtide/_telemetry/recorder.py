"""Records the cost of a training run: in total, per iteration, and per moment of one iteration.

An iteration ends when an optimizer has stepped. Moved bytes and stalls are counters of the daemon,
which include those of all its sessions. Times, leases and page faults are of this process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memtide._capi.client import Client, Stats
from memtide._daemon import inspection
from memtide._daemon.inspection import LINKS, STALLS, Node, Pool
from memtide._telemetry import process_memory
from memtide._telemetry.memory_timeline import RankSample, Sample, Tide
from memtide._telemetry.observer import Observer, SpeculativeBatches
from memtide._telemetry.step_overlap import StepWaits
from memtide._util.devices import device_name
from memtide._util.hook_costs import HookCosts
from memtide._util.model_bytes import ModelBytes

_MOST_RECORDS = 10_000
_MOST_SAMPLES = 4_000
_FIRST_SAMPLED = 3  # First iterations that are sampled, too, if a later one is to be drawn.
_SHORTEST_RECORD_S = 0.1
_INSPECTING_PART = 0.005  # At most: to ask the daemon delays the script.
_CLIENT_COUNTS = (
    *("acquires", "acquire_hits", "faults", "upgrades", "releases", "calls", "blocking_calls"),
    *("maps", "protected_iterations"),
)
# The parts of the waits for leases: until the daemon answered, while chunks were mapped, and while
# others were unmapped first, once a GPU had done with them.
WAITS = ("call", "map", "unmap")


@dataclass(frozen=True)
class Record:
    """The cost of one iteration, or of several consecutive ones that are short."""

    first_iteration: int
    iterations: int
    seconds: float
    moved_bytes: dict[str, int]
    stalled_s: dict[str, float]
    client: dict[str, int]
    waited_s: float
    waits_s: dict[str, float]  # WAITS.
    hooks: dict[str, int]  # HookCosts.
    step_wait_s: float  # Time that the script waited for offloaded steps.


class Recorder(Observer):
    """Records a run. Use it from the thread that trains."""

    def __init__(self, client: Client, socket_dir: Path, tide_iteration: int | None = None) -> None:
        self._client = client
        self._socket_dir = socket_dir
        self._tide_iteration = tide_iteration
        self._began = time.monotonic()
        self._record_began = self._began
        self._iterations_recorded = 0
        self._shortest_record_s = _SHORTEST_RECORD_S
        self.iterating = False  # A moment has come: the model is made.
        self._node = inspection.inspect(socket_dir)
        self._stats = client.stats()
        self._first_node, self._first_stats = self._node, self._stats
        self._records: deque[Record] = deque(maxlen=_MOST_RECORDS)
        self.iterations = 0
        self.iterating_s = 0.0
        self.tide: Tide | None = None
        self.sampling = False
        self._sampled_tide: Tide | None = None
        self._step_waits = StepWaits()
        self._step_wait_recorded_s = 0.0  # `_step_waits.total_s` at the end of the last record.
        self._kept_activations: Callable[[], int] = lambda: 0
        self._model = ModelBytes()
        self.count_hooks(HookCosts())
        self._start_tide()

    def count_kept_activations(self, count: Callable[[], int]) -> None:
        """The tide picture shows them as a part of the process's own memory."""
        self._kept_activations = count

    def count_model(self, count: ModelBytes) -> None:
        """The summary says what is outside of chunks."""
        self._model = count

    def count_hooks(self, costs: HookCosts) -> None:
        """Records and summary have what is added to these counters, or was since the last call."""
        self._hooks = costs
        self._hooks_recorded, self._first_hooks = replace(costs), replace(costs)

    def moment(self, phase: str, name: str) -> None:
        """Takes a sample if this iteration is sampled for the tide picture."""
        if not self.iterating:
            # The model is built before the first moment; that time belongs to no iteration.
            self.iterating = True
            self._begin_record(inspection.inspect(self._socket_dir), self._client.stats())
        tide = self._sampled_tide
        if tide is None or len(tide.samples) >= _MOST_SAMPLES:
            return
        node = inspection.inspect(self._socket_dir, sessions=True)
        pools = node.pools_with(self._client.properties.device_number)
        tide.pool_bytes = {pool.tier: pool.capacity_bytes for pool in pools}
        tide.samples.append(
            Sample(
                seconds=time.monotonic() - self._record_began,
                phase=phase,
                name=name,
                own_host_bytes=process_memory.host_bytes(),
                own_device_bytes=process_memory.device_bytes(self._client.properties.dl_device),
                kinds={kind: asdict(usage) for kind, usage in node.kinds.items()},
                budget_bytes=_budget(node, pools, self._client.properties.session_id),
                kept_activation_bytes=self._kept_activations(),
                stalled_s=sum(node.stalls_s.values()) - sum(self._node.stalls_s.values()),
                ranks=tuple(
                    RankSample(use.rank, use.leased_bytes, process_memory.host_bytes_of(use.pid))
                    for use in node.ranks_of(self._client.properties.job_id)
                ),
                waits_s=self._waited_s(),
            )
        )

    def _waited_s(self) -> dict[str, float]:
        hooks = self._hooks.since(self._hooks_recorded)
        return _waits_s(self._stats, self._client.stats()) | {
            "gradients": hooks["gradient_ns"] / 1e9,
            "dispatch": hooks["dispatch_ns"] / 1e9,
        }

    def end_iteration(self) -> None:
        """Ends an iteration, and the record if it has lasted long enough."""
        self.iterations += 1
        if self._sampled_tide is not None and self._sampled_tide.samples:
            self.tide, self._sampled_tide = self._sampled_tide, None
        self.sampling = False
        if time.monotonic() - self._record_began >= self._shortest_record_s:
            self._end_record()
        self._start_tide()

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        """Adds an offloaded step."""
        self._step_waits.add(waited_s, batches)

    def last(self) -> Record | None:
        """The latest record."""
        return self._records[-1] if self._records else None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of this process's job at the end of the latest record."""
        return self._node.pools_with(self._client.properties.device_number)

    def finish(
        self, budget: dict[str, Any] | None = None, tensor_bytes: Mapping[str, int] | None = None
    ) -> Summary:
        """The summary of the run up to now. `budget`: Budget.as_json(), if there is one.
        `tensor_bytes`: bytes of this process's chunks that hold tensors, by kind."""
        if self.iterations > self._iterations_recorded:
            self._end_record()
        node = inspection.inspect(self._socket_dir, sessions=True)
        stats = self._client.stats()
        return Summary(
            seconds=time.monotonic() - self._began,
            iterations=self.iterations,
            iterating_s=self.iterating_s,
            chunk_bytes=self._client.properties.chunk_bytes,
            lease_budget=self._client.properties.lease_budget,
            device=device_name(self._client.properties.dl_device),
            moved_bytes=_moved_bytes(self._first_node, node),
            ballooned_bytes=_counter_delta(self._first_node, node, "ballooned_bytes"),
            reclaimed_bytes={
                tier: _counter_delta(self._first_node, node, f"{tier}_reclaimed_bytes")
                for tier in inspection.TIERS
            },
            stalled_s=_stalls_s(self._first_node, node),
            client=_client_counts(self._first_stats, stats),
            waited_s=(stats.wait_nanoseconds - self._first_stats.wait_nanoseconds) / 1e9,
            waits_s=_waits_s(self._first_stats, stats),
            hooks=self._hooks.since(self._first_hooks),
            offloaded_steps=self._step_waits.count,
            step_wait_s=self._step_waits.total_s,
            speculative_steps=self._step_waits.as_json(),
            chunks=stats.chunks,
            node=node,
            shadow_bytes=_shadow_bytes(node, tensor_bytes or {}),
            records=list(self._records),
            tide=self.tide,
            budget=budget,
            model_bytes=self._model.total,
            outside_bytes=dict(self._model.outside),
        )

    def _start_tide(self) -> None:
        # The first iterations are sampled, too, as the script may end before the one to draw.
        # Iterations between are not: samples take time, which would distort the measured run.
        number, wanted = self.iterations + 1, self._tide_iteration
        if wanted is not None and (number == wanted or number <= min(wanted, _FIRST_SAMPLED)):
            self._sampled_tide = Tide(number)
            self.sampling = True

    def _end_record(self) -> None:
        now = time.monotonic()
        node, stats = inspection.inspect(self._socket_dir), self._client.stats()
        inspected_s = time.monotonic() - now
        self._shortest_record_s = max(_SHORTEST_RECORD_S, inspected_s / _INSPECTING_PART)
        record = Record(
            first_iteration=self._iterations_recorded + 1,
            iterations=self.iterations - self._iterations_recorded,
            seconds=now - self._record_began,
            moved_bytes=_moved_bytes(self._node, node),
            stalled_s=_stalls_s(self._node, node),
            client=_client_counts(self._stats, stats),
            waited_s=(stats.wait_nanoseconds - self._stats.wait_nanoseconds) / 1e9,
            waits_s=_waits_s(self._stats, stats),
            hooks=self._hooks.since(self._hooks_recorded),
            step_wait_s=self._step_waits.total_s - self._step_wait_recorded_s,
        )
        self._step_wait_recorded_s = self._step_waits.total_s
        self._records.append(record)
        self.iterating_s += record.seconds
        self._begin_record(node, stats)

    def _begin_record(self, node: Node, stats: Stats) -> None:
        self._record_began, self._node, self._stats = time.monotonic(), node, stats
        self._hooks_recorded = replace(self._hooks)
        self._iterations_recorded = self.iterations


@dataclass(frozen=True)
class Summary:
    """The cost of a run. `as_json` is the content of the --stats file."""

    seconds: float
    iterations: int
    iterating_s: float
    chunk_bytes: int
    lease_budget: int
    device: str  # The device of tensors in chunks: "cpu" or "cuda:0".
    moved_bytes: dict[str, int]
    ballooned_bytes: int  # Host memory that the balloon took; bytes taken twice count twice.
    reclaimed_bytes: dict[str, int]  # By tier, from jobs for others, counted as above.
    stalled_s: dict[str, float]
    client: dict[str, int]
    waited_s: float
    waits_s: dict[str, float]  # WAITS.
    hooks: dict[str, int]  # HookCosts.
    offloaded_steps: int  # Offloaded optimizer steps.
    step_wait_s: float  # Time that the script waited for them.
    speculative_steps: dict[str, Any]  # StepWaits.as_json().
    chunks: int
    node: Node
    # By kind, a part of what is allocated: shadow chunks. Empty where other sessions have chunks,
    # which the daemon does not tell apart.
    shadow_bytes: dict[str, int]
    records: list[Record]
    tide: Tide | None
    budget: dict[str, Any] | None  # Budget.as_json().
    # The models' bytes when an optimizer last made its first step; by the reason, those outside.
    model_bytes: int
    outside_bytes: dict[str, int]

    def typical_seconds(self) -> float:
        """Median seconds of an iteration; 0 if there was none."""
        times = sorted(record.seconds / record.iterations for record in self.records)
        return times[len(times) // 2] if times else 0.0

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values; sizes in bytes, times in seconds."""
        return {
            "seconds": self.seconds,
            "iterations": self.iterations,
            "seconds_per_iteration": self.typical_seconds(),
            "chunk_bytes": self.chunk_bytes,
            "chunks": self.chunks,
            "lease_budget": self.lease_budget,
            "device": self.device,
            "moved_bytes": self.moved_bytes,
            "ballooned_bytes": self.ballooned_bytes,
            "reclaimed_bytes": self.reclaimed_bytes,
            "stalled_seconds": self.stalled_s,
            "client": self.client,
            "waited_seconds": self.waited_s,
            "waits_seconds": self.waits_s,
            "hooks": self.hooks,
            "offloaded_steps": self.offloaded_steps,
            "step_wait_seconds": self.step_wait_s,
            "speculative_steps": self.speculative_steps,
            "budget": self.budget,
            "model_bytes": self.model_bytes,
            "outside_bytes": self.outside_bytes,
            "pools": [asdict(pool) for pool in self.node.pools],
            "kinds": {kind: asdict(usage) for kind, usage in self.node.kinds.items()},
            "shadow_bytes": self.shadow_bytes,
            "records": [asdict(record) for record in self.records],
            "tide": asdict(self.tide) if self.tide else None,
        }


def _budget(node: Node, pools: Sequence[Pool], session_id: int) -> dict[str, int]:
    session = next((s for s in node.sessions if int(s.get("session_id", 0)) == session_id), {})
    return {
        pool.tier: int(session.get(f"{pool.tier}_share_bytes", pool.capacity_bytes))
        - int(session.get(f"{pool.tier}_ballooned_bytes", 0))
        for pool in pools
    }


def _shadow_bytes(node: Node, tensor_bytes: Mapping[str, int]) -> dict[str, int]:
    if len(node.sessions) != 1 or node.others.chunk_count:
        return {}
    beside = {
        kind: usage.allocated_bytes - tensor_bytes.get(kind, 0)
        for kind, usage in node.kinds.items()
    }
    return {kind: size_bytes for kind, size_bytes in beside.items() if size_bytes > 0}


def _counter_delta(before: Node, after: Node, counter: str) -> int:
    return after.counters.get(counter, 0) - before.counters.get(counter, 0)


def _moved_bytes(before: Node, after: Node) -> dict[str, int]:
    return {link: _counter_delta(before, after, link) for link in LINKS}


def _stalls_s(before: Node, after: Node) -> dict[str, float]:
    return {name: after.stalls_s[name] - before.stalls_s[name] for name in STALLS}


def _client_counts(before: Stats, after: Stats) -> dict[str, int]:
    return {name: getattr(after, name) - getattr(before, name) for name in _CLIENT_COUNTS}


def _waits_s(before: Stats, after: Stats) -> dict[str, float]:
    def seconds(stats: Stats, name: str) -> float:
        return float(getattr(stats, f"{name}_nanoseconds")) / 1e9

    return {name: seconds(after, name) - seconds(before, name) for name in WAITS}
