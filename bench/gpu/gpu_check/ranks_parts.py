"""Ranks on one device: what they keep once, and what that costs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check import training
from gpu_check.parts import Bench
from gpu_check.training import GIB, MIB, Trained
from gpu_check.training_parts import same_bits

_Rows = Iterator[dict[str, Any]]
_RANKS = 2
# Bytes of all chunks, and those that are not needed, as ranks have them in common.
_ASK = """
import json
from pathlib import Path
from memtide._daemon import inspection
here = Path("HERE")
kinds = inspection.inspect(here).kinds
use = {kind: [use.allocated_bytes, use.shared_bytes] for kind, use in kinds.items()}
(here / "use").write_text(json.dumps(use))
"""


def ranks(bench: Bench) -> _Rows:
    """Two ranks train data-parallel with half of the device each, plainly, and in pools of a
    quarter of their states."""
    script = Path(__file__).resolve().parent / "data_parallel.py"
    if bench.home.fake:
        shape = "--layers 6 --width 256 --context 32 --batch 2 --steps 4"
        shape += " --device fakegpu --dtype float32"
        state_bytes = 4 * 4 * 6 * 12 * 256**2
    else:
        shape = "--layers 24 --width 2048 --context 1024 --batch 4 --steps 6"
        shape += " --device cuda --dtype bfloat16"
        state_bytes = 4 * 2 * 24 * 12 * 2048**2
    run = [f"--nproc-per-node={_RANKS}", "--standalone", "--local-addr=127.0.0.1"]
    run += [str(script), *shape.split()]
    plain = _trained(bench, ["-m", "torch.distributed.run", *run])
    with tempfile.TemporaryDirectory() as scratch:
        pools = [
            f"--socket-dir={scratch}",
            f"--device-pool={_RANKS * max(16 * MIB, state_bytes // 4 // (2 * MIB) * 2 * MIB)}",
            f"--host-pool={_RANKS * state_bytes * 5 // 4 // (2 * MIB) * 2 * MIB + 64 * MIB}",
            f"--ssd-pool={_RANKS * state_bytes * 5 // 4 + GIB}",
            f"--ssd-dir={scratch}",
        ]
        ask = ["--pause=2", "--at-end", _ASK.replace("HERE", scratch)]
        command = ["-m", "memtide", "run", "--quiet", *pools, "torchrun", *run, *ask]
        ours = _trained(bench, command)
        kinds = json.loads((Path(scratch) / "use").read_text(encoding="utf-8"))
    for rank in range(_RANKS):
        yield from same_bits(f"rank {rank}: ", plain[rank].steps, ours[rank].steps)
    states = [kinds[kind] for kind in ("parameter", "optimizer_state")]
    stored_bytes = sum(allocated for allocated, _ in states)
    of_one = sum(allocated + shared for allocated, shared in states) / _RANKS
    yield {
        "name": "parameters and moments of 2 ranks in host memory and on SSD, against one's",
        "value": stored_bytes / of_one,
        "unit": "x",
        "at_most": 1.05,
    }
    seconds = [trained[0].seconds("") for trained in (plain, ours)]
    yield {
        "name": "step of ranks in a quarter / plain",
        "value": seconds[1] / seconds[0],
        "unit": "x",
    }


def _trained(bench: Bench, command: list[str]) -> list[Trained]:
    """The trainings of the ranks, as their logs say."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        training.run(bench.home, [sys.executable, *command, "--result", log])
        logs = [Path(f"{log}{rank}") for rank in range(_RANKS)]
        return [Trained(training.read_log(each), {}, 0) for each in logs]
