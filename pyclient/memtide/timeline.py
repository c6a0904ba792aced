"""A trace for chrome://tracing and ui.perfetto.dev: rows over time, in their JSON.

Three groups: the program (iterations, phases, moments, stalls, its own memory), the moves (a row
for each link, more where they overlap), and the chunks (a row for each, with its uses).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

from memtide.trace import Moment, Move, Stall, Trace

_PROGRAM, _MOVES, _CHUNKS = 1, 2, 3
_ITERATIONS, _PHASES, _MOMENTS, _FIRST_STALLS = 1, 2, 3, 4
# Of chrome://tracing. Perfetto gives each name a colour, and does not look at numbers in it: so
# names begin with the reason.
_COLOURS = {
    "demand": "terrible",
    "prefetch": "good",
    "victim": "bad",
    "cleaning": "thread_state_runnable",
    "request": "generic_work",
}

_Event = dict[str, Any]


def write(trace: Trace, path: Path) -> None:
    """Writes the trace as a JSON file for these viewers."""
    shown = {"traceEvents": list(events(trace)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(shown, separators=(",", ":")) + "\n", encoding="utf-8")


def events(trace: Trace) -> Iterator[_Event]:
    """All events, in the Trace Event Format."""
    yield from _program(trace)
    yield from _moves(trace)
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
        told = {"moment": moment.index, "phase": moment.phase, "uses": len(moment.uses)}
        yield _slice(_PROGRAM, _MOMENTS, moment.name, moment.time_s, end_s, **told)
        yield _own(moment)
    placed = _in_lanes(trace.stalls, count(_FIRST_STALLS))
    yield from (_row(_PROGRAM, row, "stalls") for row in sorted({row for row, _ in placed}))
    for row, stall in placed:
        name, end_s = f"waits for {stall.waited_for}", stall.start_s + stall.duration_s
        yield _slice(_PROGRAM, row, name, stall.start_s, end_s, "terrible", chunks=stall.chunks)


def _own(moment: Moment) -> _Event:
    return {
        "ph": "C",
        "pid": _PROGRAM,
        "name": "own memory",
        "ts": _microseconds(moment.time_s),
        "args": {"device": moment.own_device_bytes, "host": moment.own_host_bytes},
    }


def _moves(trace: Trace) -> Iterator[_Event]:
    yield _group(_MOVES, "moves")
    rows = count(1)
    for link in sorted({move.link for move in trace.moves}):
        placed = _in_lanes([move for move in trace.moves if move.link == link], rows)
        yield from (_row(_MOVES, row, link) for row in sorted({row for row, _ in placed}))
        for row, move in placed:
            name, told = f"{move.reason} {move.chunk}", _told_of(move, trace)
            if move.target is None:
                yield _instant(_MOVES, row, name, move.start_s, **told)
                continue
            end_s, colour = move.start_s + move.duration_s, _COLOURS.get(move.reason)
            yield _slice(_MOVES, row, name, move.start_s, end_s, colour, **told)


def _told_of(move: Move, trace: Trace) -> dict[str, Any]:
    chunk = trace.chunks.get(move.chunk)
    told = {
        "chunk": move.chunk,
        "kind": chunk.kind if chunk else "unknown",
        "reason": move.reason,
        "moment": move.moment,
        "next use": "none expected" if move.next_use is None else move.next_use,
    }
    return {**told, "nearer": move.nearer} if move.reason in ("victim", "cleaning") else told


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
            told = {"moment": moment.index, "in": moment.name}
            yield _slice(_CHUNKS, row, name, moment.time_s, end_s, **told)


_Timed = TypeVar("_Timed", Move, Stall)


def _in_lanes(events: Sequence[_Timed], rows: Iterator[int]) -> list[tuple[int, _Timed]]:
    """Each event by its start, with a row in which none before it goes on."""
    busy_until: dict[int, float] = {}
    placed = []
    for event in sorted(events, key=lambda each: each.start_s):
        free = (row for row, until in busy_until.items() if until <= event.start_s)
        row = next(free, None) or next(rows)
        busy_until[row] = event.start_s + event.duration_s
        placed.append((row, event))
    return placed


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
    **told: Any,
) -> _Event:
    start = _microseconds(start_s)
    event = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start,
        # Of rounded times, so that neighbours touch and never overlap.
        "dur": round(_microseconds(end_s) - start, 3),
        "args": told,
    }
    return {**event, "cname": colour} if colour else event


def _instant(pid: int, tid: int, name: str, at_s: float, **told: Any) -> _Event:
    at = _microseconds(at_s)
    return {"ph": "i", "s": "t", "pid": pid, "tid": tid, "name": name, "ts": at, "args": told}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
