"""Runs a training script and counts the bytes of its tensors, as torch's profiler sees them.

    counted_run.py FILE SCRIPT ARGS...

Writes the most that torch's allocator of the CPU had lent at once to FILE, in bytes. Tensors in
memtide's chunks are not among them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch


def main() -> None:
    file, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        runpy.run_path(script, run_name="__main__")
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    lent = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        lent += change.nbytes()
        most = max(most, lent)
    file.write_text(f"{most}\n", encoding="ascii")


if __name__ == "__main__":
    main()
