"""What a training run cost: per iteration, in total, and moment by moment for one iteration.

An iteration ends when an optimizer has stepped. Counters are the node's: on a daemon shared with
other sessions they include what those moved; time, leases and faults are this process's own.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memtide import node as nodes
from memtide import own_memory
from memtide._native import Client, Stats, device_name
from memtide.node import LINKS, STALLS, Node
from memtide.observer import EarlyBatches, Observer
from memtide.samples import Sample, Tide
from memtide.step_waits import StepWaits

_RECORDS_KEPT = 10_000
_SAMPLES_KEPT = 4_000
_ALSO_SAMPLED = 3  # Iterations, where a later one is to be drawn.
_SHORTEST_RECORD_S = 0.1
_CLIENT_COUNTS = ("acquires", "acquire_hits", "faults", "upgrades", "releases", "calls")


@dataclass(frozen=True)
class Record:
    """Some consecutive iterations: one, unless they are shorter than a tenth of a second."""

    first_iteration: int
    iterations: int
    seconds: float
    moved_bytes: dict[str, int]
    stalled_s: dict[str, float]
    client: dict[str, int]
    waited_s: float
    step_wait_s: float  # For the daemon's optimizer steps.


class Recorder(Observer):
    """Records a run. Used from the thread that trains."""

    def __init__(self, client: Client, socket_dir: Path, tide_iteration: int | None = None) -> None:
        self._client = client
        self._socket_dir = socket_dir
        self._tide_iteration = tide_iteration
        self._began = time.monotonic()
        self._mark = self._began
        self._iterations_marked = 0
        self._iterating = False
        self._node = nodes.inspect(socket_dir)
        self._stats = client.stats()
        self._first_node, self._first_stats = self._node, self._stats
        self._records: deque[Record] = deque(maxlen=_RECORDS_KEPT)
        self.iterations = 0
        self.iterating_s = 0.0
        self.tide: Tide | None = None
        self.sampling = False
        self._pending: Tide | None = None
        self._waits = StepWaits()
        self._waited_for_steps_s = 0.0  # Up to the last record.
        self._start_tide()

    def moment(self, phase: str, name: str) -> None:
        """Takes a sample, in the iteration that is to be drawn."""
        if not self._iterating:  # What came before is the making of the model.
            self._iterating = True
            self._mark_now(nodes.inspect(self._socket_dir), self._client.stats())
        tide = self._pending
        if tide is None or len(tide.samples) >= _SAMPLES_KEPT:
            return
        node = nodes.inspect(self._socket_dir, sessions=True)
        tide.pool_bytes = {pool.tier: pool.capacity_bytes for pool in node.pools}
        tide.samples.append(
            Sample(
                seconds=time.monotonic() - self._mark,
                phase=phase,
                name=name,
                own_host_bytes=own_memory.host_bytes(),
                own_device_bytes=own_memory.device_bytes(self._client.properties.dl_device),
                kinds={kind: asdict(usage) for kind, usage in node.kinds.items()},
                budget_bytes=_budget(node),
                stalled_s=sum(node.stalls_s.values()) - sum(self._node.stalls_s.values()),
            )
        )

    def end_iteration(self) -> None:
        """Ends an iteration, and its record if it was long enough."""
        self.iterations += 1
        if self._pending is not None and self._pending.samples:
            self.tide, self._pending = self._pending, None
        self.sampling = False
        if time.monotonic() - self._mark >= _SHORTEST_RECORD_S:
            self._end_record()
        self._start_tide()

    def stepped(self, waited_s: float, early: EarlyBatches) -> None:
        """Counts a step by the daemon."""
        self._waits.add(waited_s, early)

    def last(self) -> Record | None:
        """The latest record."""
        return self._records[-1] if self._records else None

    def finish(self) -> Summary:
        """The whole run, up to now."""
        if self.iterations > self._iterations_marked:
            self._end_record()
        node, stats = nodes.inspect(self._socket_dir), self._client.stats()
        return Summary(
            seconds=time.monotonic() - self._began,
            iterations=self.iterations,
            iterating_s=self.iterating_s,
            chunk_bytes=self._client.properties.chunk_bytes,
            lease_budget=self._client.properties.lease_budget,
            device=device_name(self._client.properties.dl_device),
            moved_bytes=_moved(self._first_node, node),
            withheld_bytes=_counted_since(self._first_node, node, "withheld_bytes"),
            ceded_bytes=_counted_since(self._first_node, node, "host_ceded_bytes"),
            stalled_s=_stalled(self._first_node, node),
            client=_counted(self._first_stats, stats),
            waited_s=(stats.wait_nanoseconds - self._first_stats.wait_nanoseconds) / 1e9,
            daemon_steps=self._waits.count,
            step_wait_s=self._waits.total_s,
            early_steps=self._waits.as_json(),
            chunks=stats.chunks,
            node=node,
            records=list(self._records),
            tide=self.tide,
        )

    def _start_tide(self) -> None:
        # The first ones are sampled, too, as a script may end before the one wished for; not all up
        # to that: a sample costs time, and with it what the run is to be judged by.
        number, wished = self.iterations + 1, self._tide_iteration
        if wished is not None and (number == wished or number <= min(wished, _ALSO_SAMPLED)):
            self._pending = Tide(number)
            self.sampling = True

    def _end_record(self) -> None:
        now, node, stats = time.monotonic(), nodes.inspect(self._socket_dir), self._client.stats()
        record = Record(
            first_iteration=self._iterations_marked + 1,
            iterations=self.iterations - self._iterations_marked,
            seconds=now - self._mark,
            moved_bytes=_moved(self._node, node),
            stalled_s=_stalled(self._node, node),
            client=_counted(self._stats, stats),
            waited_s=(stats.wait_nanoseconds - self._stats.wait_nanoseconds) / 1e9,
            step_wait_s=self._waits.total_s - self._waited_for_steps_s,
        )
        self._waited_for_steps_s = self._waits.total_s
        self._records.append(record)
        self.iterating_s += record.seconds
        self._mark_now(node, stats)

    def _mark_now(self, node: Node, stats: Stats) -> None:
        self._mark, self._node, self._stats = time.monotonic(), node, stats
        self._iterations_marked = self.iterations


@dataclass(frozen=True)
class Summary:
    """A run in numbers; `as_json` is what --stats writes."""

    seconds: float
    iterations: int
    iterating_s: float
    chunk_bytes: int
    lease_budget: int
    device: str  # Of tensors in chunks: "cpu" or "cuda:0".
    moved_bytes: dict[str, int]
    withheld_bytes: int  # Of host memory, to a machine that was short of it; each time counts.
    ceded_bytes: int  # Of host memory, by jobs of the node to other ones, likewise.
    stalled_s: dict[str, float]
    client: dict[str, int]
    waited_s: float
    daemon_steps: int  # Of optimizers, made by the daemon.
    step_wait_s: float  # For them.
    early_steps: dict[str, Any]  # As StepWaits.as_json.
    chunks: int
    node: Node
    records: list[Record]
    tide: Tide | None

    def typical_seconds(self) -> float:
        """Median seconds of an iteration; 0: there was none."""
        times = sorted(record.seconds / record.iterations for record in self.records)
        return times[len(times) // 2] if times else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values; sizes in bytes, times in seconds."""
        return {
            "seconds": self.seconds,
            "iterations": self.iterations,
            "seconds_per_iteration": self.typical_seconds(),
            "chunk_bytes": self.chunk_bytes,
            "chunks": self.chunks,
            "lease_budget": self.lease_budget,
            "device": self.device,
            "moved_bytes": self.moved_bytes,
            "withheld_bytes": self.withheld_bytes,
            "ceded_bytes": self.ceded_bytes,
            "stalled_seconds": self.stalled_s,
            "client": self.client,
            "waited_seconds": self.waited_s,
            "daemon_steps": self.daemon_steps,
            "step_wait_seconds": self.step_wait_s,
            "early_steps": self.early_steps,
            "pools": [asdict(pool) for pool in self.node.pools],
            "kinds": {kind: asdict(usage) for kind, usage in self.node.kinds.items()},
            "records": [asdict(record) for record in self.records],
            "tide": asdict(self.tide) if self.tide else None,
        }


def _budget(node: Node) -> dict[str, int]:
    own = next((s for s in node.sessions if int(s.get("pid", 0)) == os.getpid()), {})
    return {
        pool.tier: int(own.get(f"{pool.tier}_share_bytes", pool.capacity_bytes))
        - int(own.get(f"{pool.tier}_withheld_bytes", 0))
        for pool in node.pools
    }


def _counted_since(before: Node, after: Node, counter: str) -> int:
    return after.counters.get(counter, 0) - before.counters.get(counter, 0)


def _moved(before: Node, after: Node) -> dict[str, int]:
    return {link: _counted_since(before, after, link) for link in LINKS}


def _stalled(before: Node, after: Node) -> dict[str, float]:
    return {name: after.stalls_s[name] - before.stalls_s[name] for name in STALLS}


def _counted(before: Stats, after: Stats) -> dict[str, int]:
    return {name: getattr(after, name) - getattr(before, name) for name in _CLIENT_COUNTS}
