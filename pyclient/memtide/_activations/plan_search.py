"""Searches the plan for an iteration's activations: runs memtide-replay with --activations.

It plays the iteration's trace again with the daemon's own engine, once for each candidate plan, in
a process of its own. The script waits for it, a second or so, once for each shape of its
iterations.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memtide._capi import locate
from memtide._trace import files as trace_files
from memtide._trace.model import Trace
from memtide.errors import MemtideError, NotInstalled

# The number of transfers of a link that say how fast it is.
_FEWEST_TRANSFERS = 4
_FLAGS_OF_LINKS = {
    ("device", "host"): "--link-gbps",
    ("host", "device"): "--link-gbps",
    ("ssd", "host"): "--ssd-read-gbps",
    ("host", "ssd"): "--ssd-write-gbps",
}
_TIMEOUT_S = 10.0


class SearchFailed(MemtideError):
    """There is no plan; the message says why."""


def link_gbps(trace: Trace) -> dict[str, float]:
    """The speeds of the links in GB/s, by their flags of memtide-replay: the median over a trace's
    transfers. A link with fewer than _FEWEST_TRANSFERS has none, and memtide-replay's default."""
    speeds: dict[str, list[float]] = {}
    for transfer in trace.transfers:
        flag = _FLAGS_OF_LINKS.get((transfer.source or "", transfer.target or ""))
        if flag is not None and transfer.duration_s > 0:
            speeds.setdefault(flag, []).append(trace.chunk_bytes / transfer.duration_s / 1e9)
    return {
        flag: statistics.median(values)
        for flag, values in sorted(speeds.items())
        if len(values) >= _FEWEST_TRANSFERS
    }


def link_flags(trace: Trace) -> list[str]:
    """The speeds of the links as flags of memtide-replay."""
    speeds = link_gbps(trace).items()
    return [argument for flag, gbps in speeds for argument in (flag, f"{gbps:.6g}")]


def search(profile: Mapping[str, Any], trace: bytes, flags: Sequence[str] = ()) -> dict[str, Any]:
    """The ActivationPlan, as JSON, for a profile, as JSON, of the last complete iteration of a
    serialized trace. SearchFailed."""
    with tempfile.TemporaryDirectory(prefix="memtide-plan-") as name:
        folder = Path(name)
        profile_path, trace_path = folder / "profile.json", folder / "run.trace.gz"
        try:
            profile_path.write_text(json.dumps(profile), encoding="utf-8")
            trace_files.save(trace, trace_path)
            done = subprocess.run(
                [locate.find_replay(), "--json", *flags, "--activations", profile_path, trace_path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (NotInstalled, OSError) as error:
            raise SearchFailed(f"the search cannot run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise SearchFailed(f"the search took more than {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise SearchFailed(message or f"memtide-replay ended with status {done.returncode}")
    try:
        plan = json.loads(done.stdout)
    except ValueError as error:
        raise SearchFailed(f"memtide-replay did not print a plan: {error}") from error
    assert isinstance(plan, dict)
    return plan
