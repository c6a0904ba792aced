"""Traces (proto/memtide/v1/trace.proto) as Python values.

Times are seconds since the first moment. Other fields refer to moments by their index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide._capi import admin
from memtide.errors import InvalidArgument, UsageError

_OPERATIONS = ("read", "write", "allocate", "free")


@dataclass(frozen=True)
class Moment:
    """A module's pass or a piece of a step. It lasts until the next moment begins."""

    index: int
    phase: str
    name: str
    own_device_bytes: int
    own_host_bytes: int
    time_s: float
    uses: tuple[tuple[int, str], ...]  # Chunk number; "read", "write", "allocate" or "free".

    def __str__(self) -> str:
        return f"{self.index} ({self.phase}, {self.name})"


@dataclass(frozen=True)
class Chunk:
    """A chunk, and the moment of its next use if one is predicted."""

    number: int
    chunk_id: int
    kind: str
    next_use: int | None


@dataclass(frozen=True)
class Transfer:
    """A transfer between tiers. Without a source, zeroing; without a target, dropping the copy."""

    chunk: int
    source: str | None
    target: str | None
    reason: str
    start_s: float
    duration_s: float
    moment: int
    next_use: int | None  # Predicted when the transfer began.
    nearer: int  # Number of other possible victims whose predicted next use was sooner.

    @property
    def link(self) -> str:
        """Human-readable source and target."""
        if self.target is None:
            return f"{self.source} dropped"
        return f"{self.source or 'zeros'} → {self.target}"


@dataclass(frozen=True)
class Stall:
    """The wait of one fetch."""

    start_s: float
    duration_s: float
    waited_for: str
    chunks: int


@dataclass(frozen=True)
class Trace:
    """The latest iterations of a job, with their transfers and stalls."""

    made_by: str
    job_id: int
    chunk_bytes: int
    slots: Mapping[str, int]
    chunks: Mapping[int, Chunk]
    moments: tuple[Moment, ...]
    iteration_ends: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    stalls: tuple[Stall, ...]
    # The profile of activations that one iteration saves, and the plan that was made of it, as JSON
    # of proto/memtide/v1/activations.proto; None: there is none.
    activation_profile: Mapping[str, Any] | None = None
    activation_plan: Mapping[str, Any] | None = None
    # The record of torch's allocator, as JSON of proto/memtide/v1/allocator.proto; None: not
    # recorded.
    allocator: Mapping[str, Any] | None = None
    # The first moment by the wall clock, in nanoseconds since 1970; 0: not known.
    first_moment_unix_ns: int = 0

    @property
    def end_s(self) -> float:
        """The end of the last transfer or stall, or the beginning of the last moment if later."""
        events: list[Transfer | Stall] = [*self.transfers, *self.stalls]
        ends = [event.start_s + event.duration_s for event in events]
        return max(ends + [moment.time_s for moment in self.moments[-1:]], default=0.0)

    def spans(self) -> Iterator[tuple[Moment, float]]:
        """Each moment and the time of its end."""
        following = [moment.time_s for moment in self.moments[1:]]
        return zip(self.moments, [*following, self.end_s], strict=False)


def fetch(socket_dir: Path | str | None = None, job_id: int | None = None) -> bytes:
    """A job's serialized trace from a daemon. UsageError: `job_id` is None, and many are open."""
    try:
        return admin.get_trace(socket_dir, job_id=job_id or 0)
    except InvalidArgument as error:
        if job_id:
            raise
        raise UsageError(f"{error}; name one with --job, `memtide status` lists them") from error


def parse(raw: bytes) -> Trace:
    """A Trace from its serialized form. InvalidArgument: the bytes are no Trace."""
    return of_json(admin.read_trace(raw))


def of_json(document: Mapping[str, Any]) -> Trace:
    """A Trace from protobuf's JSON of the message."""
    moments = document.get("moments", ())
    return Trace(
        made_by=document.get("made_by", ""),
        job_id=int(document.get("job_id", 0)),
        chunk_bytes=int(document.get("chunk_size_bytes", 0)),
        slots={tier: int(document.get(f"{tier}_slots", 0)) for tier in ("device", "host", "ssd")},
        chunks={
            int(entry.get("number", 0)): _chunk(entry, len(moments) - 1)
            for entry in document.get("chunks", ())
        },
        moments=tuple(_moment(index, entry) for index, entry in enumerate(moments)),
        iteration_ends=tuple(int(end) for end in document.get("iteration_ends", ())),
        transfers=tuple(_transfer(entry) for entry in document.get("moves", ())),
        stalls=tuple(_stall(entry) for entry in document.get("stalls", ())),
        activation_profile=document.get("activation_profile"),
        activation_plan=document.get("activation_plan"),
        allocator=document.get("allocator"),
        first_moment_unix_ns=int(document.get("first_moment_unix_ns", 0)),
    )


def _chunk(entry: Mapping[str, Any], last_moment: int) -> Chunk:
    kind = _word(entry, "kind", "CHUNK_KIND_") or "other"
    return Chunk(
        number=int(entry.get("number", 0)),
        chunk_id=int(entry.get("chunk_id", 0)),
        kind=kind.replace("_", " "),
        next_use=_next_use(entry, last_moment),
    )


def _moment(index: int, entry: Mapping[str, Any]) -> Moment:
    uses = (divmod(int(use), len(_OPERATIONS)) for use in entry.get("uses", ()))
    return Moment(
        index=index,
        phase=_word(entry, "phase", "PHASE_") or "other",
        name=entry.get("name", ""),
        own_device_bytes=int(entry.get("own_device_bytes", 0)),
        own_host_bytes=int(entry.get("own_host_bytes", 0)),
        time_s=_seconds(entry, "time_ns"),
        uses=tuple((chunk, _OPERATIONS[operation]) for chunk, operation in uses),
    )


def _transfer(entry: Mapping[str, Any]) -> Transfer:
    moment = int(entry.get("moment", 0))
    return Transfer(
        chunk=int(entry.get("chunk", 0)),
        source=_word(entry, "from", "TIER_"),
        target=_word(entry, "to", "TIER_"),
        reason=_word(entry, "reason", "MOVE_REASON_") or "other",
        start_s=_seconds(entry, "start_ns"),
        duration_s=_seconds(entry, "duration_ns"),
        moment=moment,
        next_use=_next_use(entry, moment),
        nearer=int(entry.get("nearer", 0)),
    )


def _stall(entry: Mapping[str, Any]) -> Stall:
    waited_for = _word(entry, "waited_for", "TIER_") or "room"
    return Stall(
        start_s=_seconds(entry, "start_ns"),
        duration_s=_seconds(entry, "duration_ns"),
        waited_for="a copy" if waited_for == "device" else waited_for,
        chunks=int(entry.get("chunks", 0)),
    )


def _next_use(entry: Mapping[str, Any], moment: int) -> int | None:
    return moment + int(entry.get("next_use_in_moments", 0)) if entry.get("predicted") else None


def _word(entry: Mapping[str, Any], name: str, prefix: str) -> str | None:
    """The value of an enum field in small letters; None if it is missing or unspecified."""
    word = str(entry.get(name, "")).removeprefix(prefix).lower()
    return word if word not in ("", "unspecified") else None


def _seconds(entry: Mapping[str, Any], name: str) -> float:
    return int(entry.get(name, 0)) / 1e9
