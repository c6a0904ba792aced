"""Measures the ranks of a launcher on one node: what they keep and compute, against one rank.

ranks.bytes, .bytes_ssd    parameters and moments of fp32 AdamW, on the host and the SSD; in the
                           second the host pool has no room for all ranks' gradients
ranks.bytes_masters        the same of bf16 parameters with fp32 masters
ranks.cpu, .cpu_ssd        CPU seconds of the optimizer's step, of all ranks and the daemon
ranks.cpu_search           the same of ranks that have nothing alike, against ranks that do not look
ranks.reads                bytes read from SSD by ranks that read the same chunk at once
ranks.unlike               ranks whose losses or weights differ from plain DDP's in any bit
ranks.found                part of altered gradients that a rank names
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daemon_process
import machine
from figures import Pair
from ranks.trials import LINE, flip_of

_RANKS, _READERS = 4, 8
_STATES = ("parameter", "optimizer_state")
_SECONDS, _SECONDS_A_TRIAL = 120.0, 20.0
# The first step makes states; in the second, pages are touched for the first time. Ranks that have
# nothing alike look for it in three steps.
_WARM_UP_STEPS, _SEARCHING_STEPS = 2, 4
# The last rank's gradient is altered, and whichever asks second says so.
_DIFFERS = re.compile(
    r"in rank \d+, the gradients of (?:one of )?(?:module\.)?(\d+)\.\w+"
    r"(?: to (?:module\.)?(\d+)\.\w+)? differ"
)
_HOST_POOL, _SMALL_HOST_POOL = "512MiB", "64MiB"
_WITHOUT_SHARING = {"MEMTIDE_TRAINING": ""}


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

    @property
    def step_s(self) -> float:
        return float(self.results[0]["step_s"])


@dataclass(frozen=True)
class _Run:
    """A script of this folder, and how it is run."""

    script: str = "train.py"
    ranks: int = _RANKS  # 0: the script starts them itself.
    host_pool: str = _HOST_POOL  # Empty: it is run without memtide.
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    most_seconds: float = _SECONDS


def measure(options: RankOptions) -> dict[str, list[Pair]]:
    """The pair of each figure."""
    load = machine.LoadBesideChildren()
    pairs = _pairs_of_trainings(options)
    pairs["ranks.reads"] = [
        _run(_Run("read.py", ranks), options).results[0]["read"] / 2**20 for ranks in (1, _READERS)
    ]
    pairs["ranks.found"] = [options.trials, _found(options)]
    others = load.of_others()
    return {name: [Pair(limit, product, others)] for name, (limit, product) in pairs.items()}


def _pairs_of_trainings(options: RankOptions) -> dict[str, list[float]]:
    plain = _run(_Run(host_pool=""), options)
    trainings = {
        (name, ranks): _run(
            _Run(ranks=ranks, host_pool=pool, settings={"masters": name == "masters"}), options
        )
        for name, pool in (
            ("", _HOST_POOL),
            ("ssd", _SMALL_HOST_POOL),
            ("masters", _HOST_POOL),
        )
        for ranks in (1, _RANKS)
    }
    pairs: dict[str, list[float]] = {}
    for name in ("", "ssd", "masters"):
        one, all_ranks = (trainings[name, ranks] for ranks in (1, _RANKS))
        suffix = f"_{name}" if name else ""
        pairs[f"ranks.bytes{suffix}"] = [one.kept_bytes / 2**20, all_ranks.kept_bytes / 2**20]
        if name != "masters":
            pairs[f"ranks.cpu{suffix}"] = [one.step_s, all_ranks.step_s]
    alone = {"alone": True, "warm_up": _SEARCHING_STEPS}
    pairs["ranks.cpu_search"] = [
        _run(_Run(settings=alone, environment=environment), options).step_s
        for environment in (_WITHOUT_SHARING, {})
    ]
    unlike = sum(
        ours[key] != its[key]
        for ours, its in zip(trainings["", _RANKS].results, plain.results, strict=True)
        for key in ("losses", "digest")
    )
    pairs["ranks.unlike"] = [0, unlike]
    return pairs


def _found(options: RankOptions) -> int:
    """How often a rank names the parameter whose gradient is altered by one bit."""
    run = _Run(
        "altered.py",
        ranks=0,
        settings={"trials": options.trials},
        most_seconds=_SECONDS_A_TRIAL * options.trials,
    )
    by_trial = re.split(rf"^{LINE} \d+$", _run(run, options).standard_error, flags=re.MULTILINE)[1:]
    found = 0
    for trial, lines in enumerate(by_trial):
        _, layer, _ = flip_of(trial, options.steps)
        named = _DIFFERS.search(lines)
        first, last = (int(named[1]), int(named[2] or named[1])) if named else (0, -1)
        # Layers stand at every second place of the model.
        if min(first, last) <= 2 * layer <= max(first, last):
            found += 1
        else:
            print(f"ranks.found: trial {trial}: not found", file=sys.stderr)
    return found


def _run(chosen: _Run, options: RankOptions) -> _Training:
    """Runs the script under memtide, with a daemon of its own, or plainly without one."""
    script = [str(Path(__file__).with_name(chosen.script))]
    if chosen.ranks:
        count = f"--nproc-per-node={chosen.ranks}"
        script = ["--standalone", "--local-addr=127.0.0.1", count, *script]
    settings = {
        "steps": options.steps,
        "warm_up": _WARM_UP_STEPS,
        "masters": False,
        "alone": False,
        "flip": None,
        "daemon": 0,
        **chosen.settings,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= chosen.environment

    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/rank"

        def run(program: list[str]) -> _Training:
            command = [sys.executable, "-m", *program, *script, out, json.dumps(settings)]
            most = chosen.most_seconds
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=most
                )
            except subprocess.TimeoutExpired as error:
                raise RanksFailed(f"not done after {error.timeout:.0f} s: {command}") from None
            if done.returncode != 0:
                raise RanksFailed(f"{command}\n{done.stderr.strip()}")
            files = sorted(Path(folder).glob("rank[0-9]*"))
            results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            return _Training(results, done.stderr)

        if not chosen.host_pool:
            return run(["torch.distributed.run"])
        flags = [f"--host-pool={chosen.host_pool}", "--ssd-pool=1GiB", "--device=none"]
        with daemon_process.running(options.memtided, options.ssd_parent, flags) as daemon:
            settings["daemon"] = daemon.pid
            environment["MEMTIDE_SOCKET_DIR"] = str(daemon.socket_dir)
            launcher = ["torchrun"] if chosen.ranks else []
            return run(["memtide", "run", "--chunk-size=2MiB", *launcher])
