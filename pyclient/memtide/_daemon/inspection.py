"""The daemon's InspectNodeResponse as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memtide._capi import admin

TIERS = ("device", "host", "ssd")
KINDS = ("parameter", "gradient", "optimizer_state", "activation", "other")
LINKS = (
    "host_to_device_bytes",
    "device_to_host_bytes",
    "ssd_read_bytes",
    "ssd_written_bytes",
    "zeroed_bytes",
)
QUOTA_FIELDS = (
    "device_bytes",
    "host_bytes",
    "ssd_bytes",
    "jobs",
    "lingering_bytes",
    "lingering_seconds",
    "ssd_written_per_day_bytes",
)
STALLS = ("stalled_on_ssd", "stalled_on_copy", "stalled_on_room", "stalled_on_budget")


@dataclass(frozen=True)
class Pool:
    """The pool of host memory, of SSD, or of one device.
    used + reserved + quarantined + ballooned + scrubbing + free = capacity."""

    tier: str
    capacity_bytes: int
    used_bytes: int
    reserved_bytes: int
    quarantined_bytes: int  # Kernels of a process that died may still write there.
    ballooned_bytes: int
    scrubbing_bytes: int
    free_bytes: int
    obtainable_bytes: int  # An elastic share's room: free, or reclaimable from other jobs.
    device_number: int = 0
    cuda_device_uuid: str = ""  # In base64; empty: the device, if it is one, is no GPU.

    @property
    def name(self) -> str:
        """\"device/0\", \"device/1\", \"host\", \"ssd\"."""
        return f"device/{self.device_number}" if self.tier == "device" else self.tier


@dataclass(frozen=True)
class Usage:
    """Bytes of all chunks of one kind: allocated, and with a valid copy on each tier."""

    allocated_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    ssd_bytes: int = 0
    shared_bytes: int = 0  # Bytes that sessions save by sharing contents.


@dataclass(frozen=True)
class RankUse:
    """One rank's use of the job that several ranks share."""

    rank: int
    ranks: int
    pid: int
    leased_bytes: int
    named_bytes: int  # The contents that its chunks have.
    shared_bytes: int  # Bytes of them that chunks of other ranks have, too.


@dataclass(frozen=True)
class HostMemory:
    """The jobs' host memory as the GPU's driver has it. All zero without a GPU."""

    pinned_bytes: int = 0
    unpinned_bytes: int = 0  # Copied through the staging buffers: the machine pins no more.
    staging_bytes: int = 0  # Pinned, too.
    # The GPU reads host memory by the CPU's page tables, so that none is held in place for it.
    coherent: bool = False
    # Where all of it is; None: on any node, but for that of `numa_node_by_device`.
    numa_node: int | None = None
    # Where devices are on several nodes: that of each, on which its jobs have their host memory.
    numa_node_by_device: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SsdDirectory:
    """A directory of the SSD pool, and its part of each cycle of stripes."""

    path: str
    bytes_per_second: int = 0  # 0: not measured.
    stripes: int = 0
    written_bytes: int = 0  # By all daemons.
    written_last_day_bytes: int = 0
    written_per_day_bytes: int = 0  # The daily budget; 0: none.
    is_awaited: bool = False  # The next eviction waits for the budget.
    endurance_bytes: int = 0  # 0: not known.
    life_years: float | None = None  # None: not known, or nothing was written in the last day.


@dataclass(frozen=True)
class UserSsdWrites:
    """The bytes that the jobs of a user wrote to SSD."""

    uid: int
    written_last_day_bytes: int = 0
    written_per_day_bytes: int = 0  # The daily budget; 0: none.
    waiting_chunks: int = 0  # Their evictions wait for a budget.
    is_awaited: bool = False  # The user's budget.


@dataclass(frozen=True)
class Others:
    """The sums that the daemon tells of the jobs of other users; all zero for root, who sees
    everything."""

    session_count: int = 0
    job_count: int = 0
    chunk_count: int = 0
    device_share_bytes: int = 0
    host_share_bytes: int = 0


@dataclass(frozen=True)
class Job:
    """A job that this user may see, also without sessions."""

    job_id: int
    uid: int
    name: str
    state: str  # "making", "running", "lingering", "ending".
    session_count: int
    bytes_by_tier: Mapping[str, int]  # Its shares.
    age_s: float
    lingers_for_s: float  # 0 unless it lingers.
    # Which steps are put on stable storage, if the job is durable, and the last one there; 0: none.
    durable_every: int = 0
    durable_step: int = 0


@dataclass(frozen=True)
class QuotaUse:
    """A quota, and what counts for it. The keys of both are the fields of Quota (quota.proto)."""

    subject: str
    is_default: bool  # The quota of "default"; `subject` is the user whom it concerns.
    limits: Mapping[str, int]
    used: Mapping[str, int]
    exceeded: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A consistent view of the daemon's state."""

    version: str
    pools: tuple[Pool, ...]
    kinds: Mapping[str, Usage]
    counters: Mapping[str, int]
    stalls_s: Mapping[str, float]
    sessions: tuple[Mapping[str, Any], ...] = ()  # Sessions that this user may see.
    jobs: tuple[Job, ...] = ()  # Jobs that this user may see.
    quotas: tuple[QuotaUse, ...] = ()  # Quotas that concern them; for administrators all.
    others: Others = Others()
    min_slots: int = 0  # The fewest slots of a job at any tier.
    warnings: tuple[str, ...] = ()
    draining: bool = False
    refuses_sessions: bool = False  # And goes on with what is open.
    host_memory: HostMemory = HostMemory()
    ssd_directories: tuple[SsdDirectory, ...] = ()
    ssd_users: tuple[UserSsdWrites, ...] = ()  # Users whom this user may see.
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers that have a pool, the fastest first."""
        return tuple(dict.fromkeys(pool.tier for pool in self.pools))

    @property
    def devices(self) -> tuple[Pool, ...]:
        """The pools of the devices, by number."""
        return tuple(pool for pool in self.pools if pool.tier == "device")

    def pools_with(self, device_number: int) -> tuple[Pool, ...]:
        """The pools that a job on this device has, one of each tier."""
        return tuple(
            pool
            for pool in self.pools
            if pool.tier != "device" or pool.device_number == device_number
        )

    def ranks_of(self, job_id: int) -> list[RankUse]:
        """The ranks that share this job, by number. Empty: there are none, or the sessions were not
        asked for."""
        ranks = [s for s in self.sessions if "rank_use" in s and int(s.get("job_id", 0)) == job_id]
        return sorted(map(rank_use, ranks), key=lambda use: use.rank)


def rank_use(session: Mapping[str, Any]) -> RankUse:
    """The RankUse of a session of Node.sessions. REQUIRES: the session has "rank_use"."""
    use = session["rank_use"]
    return RankUse(
        rank=int(session.get("rank", 0)),
        ranks=int(session.get("ranks", 0)),
        pid=int(session.get("pid", 0)),
        leased_bytes=int(session.get("leases", 0)) * int(session.get("chunk_size_bytes", 0)),
        named_bytes=int(use.get("named_bytes", 0)),
        shared_bytes=int(use.get("shared_bytes", 0)),
    )


def inspect(socket_dir: Path | str | None = None, *, sessions: bool = False) -> Node:
    """The present state of the daemon. Unavailable: no daemon answers."""
    return parse(admin.inspect_node(socket_dir, sessions=sessions))


def parse(reply: Mapping[str, Any]) -> Node:
    """A Node from protobuf's JSON of InspectNodeResponse."""
    counters = reply.get("counters", {})
    return Node(
        version=reply.get("version", "?"),
        pools=tuple(_pool(pool) for pool in reply.get("pools", ())),
        kinds={
            _kind(entry.get("kind", "")): Usage(
                **{name: int(entry.get(name, 0)) for name in Usage.__dataclass_fields__}
            )
            for entry in reply.get("kinds", ())
        },
        counters={
            name: int(value) for name, value in counters.items() if not name.startswith("stalled")
        },
        stalls_s={name: seconds(counters.get(name, "0s")) for name in STALLS},
        sessions=tuple(reply.get("sessions", ())),
        jobs=tuple(map(parse_job, reply.get("jobs", ()))),
        quotas=tuple(map(_quota_use, reply.get("quotas", ()))),
        others=Others(
            **{
                name: int(reply.get("others", {}).get(name, 0))
                for name in Others.__dataclass_fields__
            }
        ),
        min_slots=int(reply.get("limits", {}).get("min_slots", 0)),
        warnings=tuple(reply.get("warnings", ())),
        draining=bool(reply.get("draining", False)),
        refuses_sessions=bool(reply.get("refuses_sessions", False)),
        host_memory=_host_memory(reply.get("host_memory", {})),
        ssd_directories=tuple(map(_ssd_directory, reply.get("ssd_directories", ()))),
        ssd_users=tuple(
            UserSsdWrites(
                uid=int(entry.get("uid", 0)),
                written_last_day_bytes=int(entry.get("written_last_day_bytes", 0)),
                written_per_day_bytes=int(entry.get("written_per_day_bytes", 0)),
                waiting_chunks=int(entry.get("waiting_chunks", 0)),
                is_awaited=bool(entry.get("is_awaited", False)),
            )
            for entry in reply.get("ssd_users", ())
        ),
        raw=reply,
    )


def seconds(duration: str) -> float:
    """Seconds of a google.protobuf.Duration in JSON, such as "1.500s"."""
    return float(duration.removesuffix("s"))


def _pool(entry: Mapping[str, Any]) -> Pool:
    texts = ("tier", "cuda_device_uuid")
    return Pool(
        tier=str(entry.get("tier", "")).removeprefix("TIER_").lower(),
        cuda_device_uuid=str(entry.get("cuda_device_uuid", "")),
        **{
            name: int(entry.get(name, 0)) for name in Pool.__dataclass_fields__ if name not in texts
        },
    )


def _ssd_directory(entry: Mapping[str, Any]) -> SsdDirectory:
    years = entry.get("life_years")
    return SsdDirectory(
        path=str(entry.get("path", "")),
        bytes_per_second=int(entry.get("bytes_per_second", 0)),
        stripes=int(entry.get("stripes", 0)),
        written_bytes=int(entry.get("written_bytes", 0)),
        written_last_day_bytes=int(entry.get("written_last_day_bytes", 0)),
        written_per_day_bytes=int(entry.get("written_per_day_bytes", 0)),
        is_awaited=bool(entry.get("is_awaited", False)),
        endurance_bytes=int(entry.get("endurance_bytes", 0)),
        life_years=None if years is None else float(years),
    )


def parse_job(entry: Mapping[str, Any]) -> Job:
    """A Job from protobuf's JSON of Job."""
    return Job(
        job_id=int(entry.get("job_id", 0)),
        uid=int(entry.get("uid", 0)),
        name=str(entry.get("name", "")),
        state=str(entry.get("state", "")).removeprefix("JOB_STATE_").lower(),
        session_count=int(entry.get("session_count", 0)),
        bytes_by_tier={tier: int(entry.get(f"{tier}_bytes", 0)) for tier in TIERS},
        age_s=seconds(entry.get("age", "0s")),
        lingers_for_s=seconds(entry.get("lingers_for", "0s")),
        durable_every=int(entry.get("durable_every", 0)),
        durable_step=int(entry.get("durable_step", 0)),
    )


def _quota_use(entry: Mapping[str, Any]) -> QuotaUse:
    quota = entry.get("quota", {})
    return QuotaUse(
        subject=str(quota.get("subject", "")),
        is_default=bool(entry.get("is_default", False)),
        limits={name: int(quota[name]) for name in QUOTA_FIELDS if name in quota},
        used={name: int(entry.get(name, 0)) for name in QUOTA_FIELDS},
        exceeded=tuple(entry.get("exceeded", ())),
    )


def _host_memory(entry: Mapping[str, Any]) -> HostMemory:
    node = entry.get("numa_node")
    return HostMemory(
        pinned_bytes=int(entry.get("pinned_bytes", 0)),
        unpinned_bytes=int(entry.get("unpinned_bytes", 0)),
        staging_bytes=int(entry.get("staging_bytes", 0)),
        coherent=bool(entry.get("coherent", False)),
        numa_node=None if node is None else int(node),
        numa_node_by_device={
            int(device): int(number)
            for device, number in entry.get("numa_node_by_device", {}).items()
        },
    )


def _kind(text: str) -> str:
    name = text.removeprefix("CHUNK_KIND_").lower()
    return name if name in KINDS else "other"
