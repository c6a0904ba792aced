"""Prints the time of a step by the share of the chunks that the device holds at once:
`granular.py [--link-gbps RATE ...]`, run by hand; needs MEMTIDE_REPLAY, the replay program, and
MEMTIDE_LIBRARY, which reads the trace.

Which layers stay on a device and which leave is the engine's choice (granular offloading, as in Lin
et al., M6-10T, 2021). Where it is spread well, transfers hide under compute. `bound` is the longer
of compute and one direction's transfers, which needs memory in which chunks can wait. `least` is
the least time with the memory that there is (`least_time.py`). The replay models links and takes
the compute times of the trace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from least_time import least_step_s, uses_of
from memtide._trace import files, model

_TRACE = Path(__file__).parent / "gpt.trace.gz"
_SHARES = (100, 90, 80, 70, 60, 50, 40, 30, 20, 10)
_ITERATION = 3  # The iterations after the second are alike.
_LATENCY_S = 10e-6  # The replay adds it to each transfer.


def _replayed(share: int, link_gbps: float) -> dict[str, Any]:
    command = [
        *(os.environ["MEMTIDE_REPLAY"], "--json", "--policy=memtide", "--host-slots=100%"),
        *(f"--device-slots={share}%", f"--link-gbps={link_gbps}", str(_TRACE)),
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    comparison: dict[str, Any] = json.loads(output)[0]
    return {**comparison["policies"][0], "slots": comparison["device_slots"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link-gbps", type=float, nargs="+", default=[4.0, 1.0, 0.4])
    trace = model.parse(files.load(_TRACE))
    uses = uses_of(trace, _ITERATION)
    for link_gbps in parser.parse_args().link_gbps:
        print(
            f"Link of {link_gbps} GB/s each way\n\n"
            "| held | moved | step | bound | least | step/bound | step/least |\n"
            "|---|---|---|---|---|---|---|"
        )
        all_held = _replayed(100, link_gbps)
        compute = all_held["seconds"] - all_held["stalled_seconds"]
        for share in _SHARES:
            result = _replayed(share, link_gbps)
            directions = (result["to_device_bytes"], result["from_device_bytes"])
            bound = max(compute, max(directions) / (link_gbps * 1e9))
            transfer_s = _LATENCY_S + trace.chunk_bytes / (link_gbps * 1e9)
            least = max(compute, least_step_s(uses, result["slots"], transfer_s))
            seconds = result["seconds"]
            print(
                f"| {share}% | {sum(directions) / 2**20:.0f} MiB | {1e3 * seconds:.0f} ms "
                f"| {1e3 * bound:.0f} ms | {1e3 * least:.0f} ms | {seconds / bound:.2f} "
                f"| {seconds / least:.2f} |",
                flush=True,
            )
        print()


if __name__ == "__main__":
    main()
