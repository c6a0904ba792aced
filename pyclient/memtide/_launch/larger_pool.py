"""How much faster a run would have been with a larger host pool: its own trace, replayed.

memtide-replay plays the trace with the daemon's own engine and the speeds that the run's links had:
once with the run's pool, once with twice that, and once with room for all chunks. All three run at
once, in processes of their own, and what has not ended in time does not count. The replay counts
more stalls than a run has, as it has a fetch for each use of a chunk; so its stalls are scaled to
those of the run, by the factor that the first one needs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from memtide._capi import locate
from memtide._daemon.connect import Connection
from memtide._telemetry.process_memory import available_host_bytes
from memtide._telemetry.recorder import Summary
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._trace.model import Trace
from memtide._util.sizes import format_size
from memtide.errors import MemtideError

_LEAST_GAIN = 1.1
_LONGEST_REPLAY_S = 1.0
_LINKS_TO_SSD = ("ssd_read_bytes", "ssd_written_bytes")
_WARM_UP_ITERATIONS = 2  # As memtide-replay leaves out (daemon/replay/replay.h).
# The queues of memtide-replay by the tiers of a transfer, each with the flags of its speed. A disk
# has one for reads and writes; the two directions of a device's link have one speed.
_QUEUES = {
    ("host", "device"): ("to the device", ("--link-gbps",)),
    ("device", "host"): ("from the device", ("--link-gbps",)),
    ("ssd", "host"): ("disk", ("--ssd-read-gbps", "--ssd-write-gbps")),
    ("host", "ssd"): ("disk", ("--ssd-read-gbps", "--ssd-write-gbps")),
}


def print_gain(summary: Summary, connection: Connection, console: Console) -> None:
    """Prints how much faster this process's run would have been, if it moved bytes to or from SSD,
    and if that is known within a second. REQUIRES: the daemon is this run's own."""
    if not any(summary.moved_bytes[link] for link in _LINKS_TO_SSD):
        return
    with contextlib.suppress(MemtideError):
        raw = traces.fetch(connection.socket_dir, connection.client.properties.job_id)
        line = line_about_larger_pool(raw, available_host_bytes(), _LONGEST_REPLAY_S)
        if line is not None:
            console.print(f"memtide: {line}", style="yellow", markup=False)


def line_about_larger_pool(raw: bytes, most_more_bytes: int, within_s: float) -> str | None:
    """The gain of a larger host pool, in a line; None: less than a tenth, or it is not known within
    `within_s` seconds. `raw`: the run's serialized trace. `most_more_bytes`: what the machine has
    for the pool beside what it has now.

    NotInstalled: there is no memtide-replay."""
    end_s = time.monotonic() + within_s
    trace = traces.parse(raw)
    slots = trace.slots["host"]
    if not slots or not trace.iteration_ends:
        return None
    wanted = {"present": str(slots), "twice": str(2 * slots), "all": "100%"}
    played = dict(_played(raw, wanted, link_flags(trace), end_s))
    if "present" not in played:
        return None
    replayed_s, replayed_stall_s = _times(played["present"])
    if not replayed_stall_s:
        return None
    stall_s = _stalled_seconds(trace)
    computing_s, scale = replayed_s - replayed_stall_s, stall_s / replayed_stall_s
    gains = {}  # By the size of the pool, in bytes.
    for name in ("twice", "all"):
        comparison = played.get(name)
        if comparison is None:
            continue
        seconds = computing_s + scale * _times(comparison)[1]
        size_slots = min(comparison["host_slots"], comparison["chunks"])
        if seconds and slots < size_slots <= slots + most_more_bytes // trace.chunk_bytes:
            gains[size_slots * trace.chunk_bytes] = (computing_s + stall_s) / seconds
    return _line(gains, all_bytes=played["present"]["chunks"] * trace.chunk_bytes)


def _line(gains: dict[int, float], all_bytes: int) -> str | None:
    """The sizes of pool, from the smallest, each of which is a tenth faster than the one before."""
    parts: list[str] = []
    least = _LEAST_GAIN
    for size_bytes, gain in sorted(gains.items()):
        if gain >= least:
            of_what = "of" if parts else "host pool of"
            holds = " (holds all)" if size_bytes >= all_bytes else ""
            faster = "" if parts else " faster"
            parts.append(f"{of_what} {format_size(size_bytes)}{holds}: {gain:.1f}x{faster}")
            least = gain * _LEAST_GAIN
    return ", ".join([*parts, "by replay"]) if parts else None


def _played(
    raw: bytes, wanted: dict[str, str], links: list[str], end_s: float
) -> Iterator[tuple[str, Any]]:
    """Each name of `wanted` with what memtide-replay says of that many host slots, if it does so
    before the monotonic clock shows `end_s`."""
    program = locate.find_replay()
    with tempfile.TemporaryDirectory(prefix="memtide-replay-") as folder:
        path = Path(folder) / "run.trace.gz"
        trace_files.save(raw, path)
        flags = ["--json", "--policy=memtide", *links]
        running = {
            name: subprocess.Popen(
                [program, *flags, f"--host-slots={slots}", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for name, slots in wanted.items()
        }
        for name, process in running.items():
            try:
                out, _ = process.communicate(timeout=max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                continue
            if process.returncode == 0:
                yield name, json.loads(out)[0]


def _times(comparison: Any) -> tuple[float, float]:
    """The seconds that an iteration takes in a replay, and of these the stalls."""
    (policy,) = comparison["policies"]
    return float(policy["seconds"]), float(policy["stalled_seconds"])


def _stalled_seconds(trace: Trace) -> float:
    """Stalls of an iteration of the run, on average over those that memtide-replay counts."""
    counted = trace.iteration_ends[_WARM_UP_ITERATIONS - 1 :]
    ends_s = [trace.moments[end].time_s for end in counted if end < len(trace.moments)]
    if len(ends_s) < 2:
        return 0.0
    stalls = (stall for stall in trace.stalls if ends_s[0] <= stall.start_s < ends_s[-1])
    return sum(stall.duration_s for stall in stalls) / (len(ends_s) - 1)


def link_flags(trace: Trace) -> list[str]:
    """The speeds of the links as flags of memtide-replay: bytes by the time in which any transfer
    was under way, as those of a disk are several at once."""
    intervals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    flags_of: dict[str, tuple[str, ...]] = {}
    for transfer in trace.transfers:
        queue, flags = _QUEUES.get((transfer.source or "", transfer.target or ""), ("", ()))
        if queue and transfer.duration_s > 0:
            flags_of[queue] = flags
            intervals[queue].append((transfer.start_s, transfer.start_s + transfer.duration_s))
    speeds: dict[str, float] = {}
    for queue, each in intervals.items():
        gbps = len(each) * trace.chunk_bytes / _covered_seconds(each) / 1e9
        for flag in flags_of[queue]:
            speeds[flag] = min(gbps, speeds.get(flag, gbps))
    return [f"{flag}={gbps:.6g}" for flag, gbps in speeds.items()]


def _covered_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    covered_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(intervals):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
