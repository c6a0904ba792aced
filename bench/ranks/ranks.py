"""Measures the ranks of a launcher on one node: what they keep and compute, against one rank.

ranks.bytes, .bytes_ssd    parameters and moments of fp32 AdamW, on the host and the SSD; in the
                           second the host pool has no room for all ranks' gradients
ranks.bytes_masters        the same of bf16 parameters with fp32 masters
ranks.cpu                  CPU seconds of the optimizer's step, of all ranks and the daemon
ranks.unlike               ranks whose losses or weights differ from plain DDP's in any bit
ranks.found                part of altered gradients that a rank names
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import daemon_process
import machine
from figures import Pair

_RANKS = 4
_STATES = ("parameter", "optimizer_state")
_TIMEOUT_S = 120.0
_LAYERS = 12
# The last rank's gradient is altered, and whichever asks second says so.
_DIFFERS = re.compile(
    r"in rank \d+, the gradients of (?:one of )?module\.(\d+)\.\w+"
    r"(?: to module\.(\d+)\.\w+)? differ"
)
_HOST_POOL, _SMALL_HOST_POOL = "512MiB", "64MiB"


class RanksFailed(Exception):
    """A training ended with an error; the message has its command and its standard error."""


@dataclass(frozen=True)
class RankOptions:
    """`trials`: how many altered gradients are looked for, with a training of two ranks each."""

    memtided: Path
    ssd_parent: Path
    steps: int
    trials: int


@dataclass(frozen=True)
class _Training:
    results: list[dict[str, Any]]  # By rank.
    standard_error: str

    @property
    def kept_bytes(self) -> int:
        return sum(self.results[0]["bytes"][kind] for kind in _STATES)


def measure(options: RankOptions) -> dict[str, list[Pair]]:
    """The pair of each figure."""
    load = machine.LoadBesideChildren()
    plain = _run(None, "", options, _RANKS)
    trainings = {
        (name, ranks): _run(options.memtided, pool, options, ranks, masters=name == "masters")
        for name, pool in (
            ("", _HOST_POOL),
            ("ssd", _SMALL_HOST_POOL),
            ("masters", _HOST_POOL),
        )
        for ranks in (1, _RANKS)
    }
    unlike = sum(
        ours[key] != its[key]
        for ours, its in zip(trainings["", _RANKS].results, plain.results, strict=True)
        for key in ("losses", "digest")
    )
    found = sum(_is_found(options, seed) for seed in range(options.trials))
    others = load.of_others()
    samples = {
        f"ranks.bytes{'_' * bool(name)}{name}": [
            Pair(
                trainings[name, 1].kept_bytes / 2**20,
                trainings[name, _RANKS].kept_bytes / 2**20,
                others,
            )
        ]
        for name in ("", "ssd", "masters")
    }
    seconds = [trainings["", ranks].results[0]["step_s"] for ranks in (1, _RANKS)]
    samples["ranks.cpu"] = [Pair(*seconds, others)]
    samples["ranks.unlike"] = [Pair(0, unlike, others)]
    samples["ranks.found"] = [Pair(options.trials, found, others)]
    return samples


def _is_found(options: RankOptions, seed: int) -> bool:
    """Whether a rank names the parameter whose gradient is altered by one bit."""
    choice = random.Random(seed)
    flip = [
        choice.randrange(2, options.steps),
        choice.randrange(_LAYERS),
        choice.randrange(1 << 20),
    ]
    training = _run(options.memtided, _HOST_POOL, options, 2, flip=flip)
    named = _DIFFERS.search(training.standard_error)
    if named is None:
        print(f"ranks.found: seed {seed}: not found", file=sys.stderr)
        return False
    first, last = int(named[1]), int(named[2] or named[1])
    return min(first, last) <= 2 * flip[1] <= max(first, last)


def _run(
    memtided: Path | None,
    host_pool: str,
    options: RankOptions,
    ranks: int,
    *,
    masters: bool = False,
    flip: list[int] | None = None,
) -> _Training:
    """Trains under memtide, with a daemon of its own, or plainly without one."""
    torchrun = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    script = [*torchrun, str(Path(__file__).with_name("train.py"))]
    settings = {"steps": options.steps, "masters": masters, "flip": flip, "daemon": 0}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/rank"

        def run(program: list[str]) -> _Training:
            command = [sys.executable, "-m", *program, *script, out, json.dumps(settings)]
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
                )
            except subprocess.TimeoutExpired as error:
                raise RanksFailed(f"not done after {error.timeout:.0f} s: {command}") from None
            if done.returncode != 0:
                raise RanksFailed(f"{command}\n{done.stderr.strip()}")
            results = [Path(f"{out}{rank}").read_text(encoding="utf-8") for rank in range(ranks)]
            return _Training([json.loads(text) for text in results], done.stderr)

        if memtided is None:
            return run(["torch.distributed.run"])
        flags = [f"--host-pool={host_pool}", "--ssd-pool=1GiB", "--device=none"]
        with daemon_process.running(memtided, options.ssd_parent, flags) as daemon:
            settings["daemon"] = daemon.pid
            environment["MEMTIDE_SOCKET_DIR"] = str(daemon.socket_dir)
            return run(["memtide", "run", "--chunk-size=2MiB", "torchrun"])
