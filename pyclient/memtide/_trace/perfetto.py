"""Writes a trace as JSON for chrome://tracing and ui.perfetto.dev (Trace Event Format).

There are three groups of rows: the program (iterations, phases, moments, stalls, memory outside
chunks), the transfers (one row for each link, more where they overlap), and the chunks (one row for
each, with its uses).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

from memtide._trace.model import Moment, Stall, Trace, Transfer

_PROGRAM, _TRANSFERS, _CHUNKS = 1, 2, 3
_ITERATIONS, _PHASES, _MOMENTS, _FIRST_STALLS = 1, 2, 3, 4
# Colour names of chrome://tracing. Perfetto chooses a colour by the event's name without numbers;
# the names of transfers begin with the reason, so there, too, a reason has one colour.
_COLOURS = {
    "demand": "terrible",
    "prefetch": "good",
    "evict": "bad",
    "write_back": "thread_state_runnable",
    "request": "generic_work",
}

_Event = dict[str, Any]


def write(trace: Trace, path: Path) -> None:
    """Writes the trace to a JSON file."""
    document: dict[str, Any] = {"traceEvents": list(events(trace)), "displayTimeUnit": "ms"}
    if trace.first_moment_unix_ns:
        # As torch's profiler has it, in whose traces times count from there, too.
        document["baseTimeNanoseconds"] = trace.first_moment_unix_ns
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def events(trace: Trace) -> Iterator[_Event]:
    """All events of the trace, in the Trace Event Format."""
    yield from _program(trace)
    yield from _transfers(trace)
    yield from _chunks(trace)


def _program(trace: Trace) -> Iterator[_Event]:
    job = f"job {trace.job_id}" if trace.job_id else trace.made_by or "job"
    yield _group(_PROGRAM, job)
    yield from (
        _row(_PROGRAM, row, name)
        for row, name in ((_ITERATIONS, "iterations"), (_PHASES, "phases"), (_MOMENTS, "moments"))
    )
    spans = list(trace.spans())
    bounds = [0, *trace.iteration_ends]
    for number, (start, end) in enumerate(pairwise(bounds)):
        if start < end <= len(spans):
            first, last = spans[start], spans[end - 1]
            name = f"iteration {number}"
            yield _slice(_PROGRAM, _ITERATIONS, name, first[0].time_s, last[1])
    for phase, grouped in groupby(spans, key=lambda span: span[0].phase):
        run = list(grouped)
        yield _slice(_PROGRAM, _PHASES, phase, run[0][0].time_s, run[-1][1])
    for moment, end_s in spans:
        details: dict[str, Any] = {
            "moment": moment.index,
            "phase": moment.phase,
            "uses": len(moment.uses),
        }
        yield _slice(_PROGRAM, _MOMENTS, moment.name, moment.time_s, end_s, **details)
        yield _outside_chunks(moment)
    in_rows = _in_rows(trace.stalls, count(_FIRST_STALLS))
    yield from (_row(_PROGRAM, row, "stalls") for row in sorted({row for row, _ in in_rows}))
    for row, stall in in_rows:
        name, end_s = f"waits for {stall.waited_for}", stall.start_s + stall.duration_s
        yield _slice(_PROGRAM, row, name, stall.start_s, end_s, "terrible", chunks=stall.chunks)


def _outside_chunks(moment: Moment) -> _Event:
    return {
        "ph": "C",
        "pid": _PROGRAM,
        "name": "memory outside chunks",
        "ts": _microseconds(moment.time_s),
        "args": {"device": moment.own_device_bytes, "host": moment.own_host_bytes},
    }


def _transfers(trace: Trace) -> Iterator[_Event]:
    yield _group(_TRANSFERS, "transfers")
    rows = count(1)
    for link in sorted({transfer.link for transfer in trace.transfers}):
        in_rows = _in_rows(
            [transfer for transfer in trace.transfers if transfer.link == link], rows
        )
        yield from (_row(_TRANSFERS, row, link) for row in sorted({row for row, _ in in_rows}))
        for row, transfer in in_rows:
            name, details = f"{transfer.reason} {transfer.chunk}", _details_of(transfer, trace)
            if transfer.target is None:
                yield _instant(_TRANSFERS, row, name, transfer.start_s, **details)
                continue
            end_s, colour = transfer.start_s + transfer.duration_s, _COLOURS.get(transfer.reason)
            yield _slice(_TRANSFERS, row, name, transfer.start_s, end_s, colour, **details)


def _details_of(transfer: Transfer, trace: Trace) -> dict[str, Any]:
    chunk = trace.chunks.get(transfer.chunk)
    details: dict[str, Any] = {
        "chunk": transfer.chunk,
        "kind": chunk.kind if chunk else "unknown",
        "reason": transfer.reason,
        "moment": transfer.moment,
        "next use": "none predicted" if transfer.next_use is None else transfer.next_use,
    }
    if transfer.reason in ("evict", "write_back"):
        details["nearer"] = transfer.nearer
    return details


def _chunks(trace: Trace) -> Iterator[_Event]:
    yield _group(_CHUNKS, "chunks")
    seen: set[int] = set()
    for moment, end_s in trace.spans():
        uses: dict[int, list[str]] = {}
        for number, operation in moment.uses:
            uses.setdefault(number, []).append(operation)
        for number, operations in uses.items():
            row = number + 1
            if number not in seen:
                seen.add(number)
                chunk = trace.chunks.get(number)
                yield _row(_CHUNKS, row, f"chunk {number}" + (f" ({chunk.kind})" if chunk else ""))
            name = ", ".join(dict.fromkeys(operations))
            details: dict[str, Any] = {"moment": moment.index, "in": moment.name}
            yield _slice(_CHUNKS, row, name, moment.time_s, end_s, **details)


_Timed = TypeVar("_Timed", Transfer, Stall)


def _in_rows(events: Sequence[_Timed], rows: Iterator[int]) -> list[tuple[int, _Timed]]:
    """Events by their start, each with a row in which no earlier event is still running."""
    busy_until: dict[int, float] = {}
    in_rows = []
    for event in sorted(events, key=lambda event: event.start_s):
        free = (row for row, until in busy_until.items() if until <= event.start_s)
        row = next(free, None) or next(rows)
        busy_until[row] = event.start_s + event.duration_s
        in_rows.append((row, event))
    return in_rows


def _group(pid: int, name: str) -> _Event:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def _row(pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _slice(
    pid: int,
    tid: int,
    name: str,
    start_s: float,
    end_s: float,
    colour: str | None = None,
    **details: Any,
) -> _Event:
    start = _microseconds(start_s)
    event = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start,
        # The difference of rounded times, so that neighbours touch and never overlap.
        "dur": round(_microseconds(end_s) - start, 3),
        "args": details,
    }
    return {**event, "cname": colour} if colour else event


def _instant(pid: int, tid: int, name: str, at_s: float, **details: Any) -> _Event:
    at = _microseconds(at_s)
    return {"ph": "i", "s": "t", "pid": pid, "tid": tid, "name": name, "ts": at, "args": details}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
