"""Traces (proto/memtide/v1/trace.proto) as Python values, from a daemon or of bytes.

Times are seconds since the first moment. Moments are named by their index in the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide import _admin
from memtide import node as nodes
from memtide.errors import InvalidArgument, UsageError

_OPERATIONS = ("read", "write", "allocate", "free")


@dataclass(frozen=True)
class Moment:
    """A module's pass or a piece of a step, until the next one begins."""

    index: int
    phase: str
    name: str
    own_device_bytes: int
    own_host_bytes: int
    time_s: float
    uses: tuple[tuple[int, str], ...]  # Chunk, and read, write, allocate or free.

    def __str__(self) -> str:
        return f"{self.index} ({self.phase}, {self.name})"


@dataclass(frozen=True)
class Chunk:
    """A chunk by its number, and the moment of its next use where one is expected."""

    number: int
    chunk_id: int
    kind: str
    next_use: int | None


@dataclass(frozen=True)
class Move:
    """Bytes of a chunk from a tier (None: zeros) to another (None: the copy was dropped)."""

    chunk: int
    source: str | None
    target: str | None
    reason: str
    start_s: float
    duration_s: float
    moment: int
    next_use: int | None  # As it was expected then.
    nearer: int  # Of those that could have left instead, how many were expected sooner.

    @property
    def link(self) -> str:
        """Where it goes, for people."""
        if self.target is None:
            return f"{self.source} dropped"
        return f"{self.source or 'zeros'} → {self.target}"


@dataclass(frozen=True)
class Stall:
    """A fetch that waited."""

    start_s: float
    duration_s: float
    waited_for: str
    chunks: int


@dataclass(frozen=True)
class Trace:
    """The latest iterations of a job."""

    made_by: str
    job_id: int
    chunk_bytes: int
    slots: Mapping[str, int]
    chunks: Mapping[int, Chunk]
    moments: tuple[Moment, ...]
    iteration_ends: tuple[int, ...]
    moves: tuple[Move, ...]
    stalls: tuple[Stall, ...]

    @property
    def end_s(self) -> float:
        """When the last thing in it began or ended."""
        ends = [event.start_s + event.duration_s for event in (*self.moves, *self.stalls)]
        return max(ends + [moment.time_s for moment in self.moments[-1:]], default=0.0)

    def spans(self) -> Iterator[tuple[Moment, float]]:
        """Each moment and when it ends."""
        following = [moment.time_s for moment in self.moments[1:]]
        return zip(self.moments, [*following, self.end_s], strict=False)


def fetch(socket_dir: Path | str | None = None, job_id: int | None = None) -> bytes:
    """A job's serialized trace from a daemon. UsageError: which job?"""
    try:
        return _admin.get_trace(socket_dir, job_id=job_id or 0)
    except InvalidArgument as error:
        if job_id:
            raise
        raise UsageError(f"{error}; name one with --job, `memtide status` lists them") from error


def job_of_process(socket_dir: Path, pid: int) -> int | None:
    """The job that a process has open. None: the daemon knows it by another number, or not."""
    for session in nodes.inspect(socket_dir, sessions=True).sessions:
        if int(session.get("pid", 0)) == pid and int(session.get("job_id", 0)):
            return int(session["job_id"])
    return None


def parse(raw: bytes) -> Trace:
    """A Trace from its serialized form. InvalidArgument: it is none."""
    return of_json(_admin.read_trace(raw))


def of_json(told: Mapping[str, Any]) -> Trace:
    """A Trace from protobuf's JSON of the message."""
    moments = told.get("moments", ())
    return Trace(
        made_by=told.get("made_by", ""),
        job_id=int(told.get("job_id", 0)),
        chunk_bytes=int(told.get("chunk_size_bytes", 0)),
        slots={tier: int(told.get(f"{tier}_slots", 0)) for tier in ("device", "host", "ssd")},
        chunks={
            int(entry.get("number", 0)): _chunk(entry, len(moments) - 1)
            for entry in told.get("chunks", ())
        },
        moments=tuple(_moment(index, entry) for index, entry in enumerate(moments)),
        iteration_ends=tuple(int(end) for end in told.get("iteration_ends", ())),
        moves=tuple(_move(entry) for entry in told.get("moves", ())),
        stalls=tuple(_stall(entry) for entry in told.get("stalls", ())),
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


def _move(entry: Mapping[str, Any]) -> Move:
    moment = int(entry.get("moment", 0))
    return Move(
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
    return moment + int(entry.get("next_use_in_moments", 0)) if entry.get("foreseen") else None


def _word(entry: Mapping[str, Any], name: str, prefix: str) -> str | None:
    """An enum's value in small letters. None: it is the unspecified one, or missing."""
    word = str(entry.get(name, "")).removeprefix(prefix).lower()
    return word if word not in ("", "unspecified") else None


def _seconds(entry: Mapping[str, Any], name: str) -> float:
    return int(entry.get(name, 0)) / 1e9
