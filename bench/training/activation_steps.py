"""Measures training whose activations are planned: a sequence four times as long in the memory of
the short one, what plans predict, what planning costs where all fits, and the largest batch.

The device is emulated, so that it computes as fast as plain torch does. Its link has two speeds:
one at which to move a block takes less time than to recompute it, and one at which it takes twice
as long, as on an H100.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from figures import Pair
from training import train_overhead

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python" / "testing"))

from limited_cgroup import ENTER, limited_cgroup  # noqa: E402

_MIB = 2**20
_LAYERS, _WIDTH, _BATCH, _SHORT = 8, 256, 4, 128
_FAST_LINK, _SLOW_LINK = 4 * 10**9, 160 * 10**6
# Iterations are recorded and rehearsed before there is a plan, which then has to settle.
_WARM_UP_STEPS = 5
_WAYS = ("host_to_device", "device_to_host")
_CGROUP_BYTES = 2 * 2**30
_RUN_TIMEOUT_S = 600
_MORE_MEMORY = "Allow more with --host-memory"


@dataclass(frozen=True)
class Options:
    """The daemon, GPT's script and one with many activations. `few`: of each figure, a sample or
    two."""

    memtided: Path
    script: Path
    heavy_script: Path
    most_pairs: int
    most_seconds: float
    few: bool


@dataclass(frozen=True)
class _Setting:
    context: int
    link: int
    device_bytes: int

    def memtide_arguments(self, stats: Path) -> list[str]:
        memory = f"--device-memory={self.device_bytes}"
        pools = ("--device=emulated", "--host-pool=1GiB", "--ssd-pool=0")
        return [*pools, memory, f"--stats={stats}"]


class _Runs:
    """Runs of the GPT, and their files."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self.stats = folder / "stats.json"

    def daemon_with(self, link: int) -> dict[str, str]:
        """The environment in which a private daemon emulates such a link."""
        wrapper = self._folder / f"memtided-{link}"
        command = f'exec {self._options.memtided} "$@" --device-bandwidth={link}'
        wrapper.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        wrapper.chmod(0o755)
        return {"MEMTIDED": str(wrapper)}

    def model(self, context: int, steps: int) -> list[str]:
        shape = ("--layers", str(_LAYERS), "--width", str(_WIDTH), "--batch", str(_BATCH))
        return [*shape, "--context", str(context), "--steps", str(steps)]

    def run(self, arguments: Sequence[str | Path], environment: dict[str, str]) -> None:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            env={**os.environ, **environment},
        )
        if done.returncode != 0:
            raise train_overhead.TrainingEnded(done.stderr.strip())

    def counted_bytes(self, context: int, setting: _Setting | None) -> int:
        """The most bytes of the device that are in use, with the pool, all of which is charged."""
        counted = self._folder / "counted"
        script = [Path(__file__).with_name("counted_run.py"), counted, self._options.script]
        steps = 2 if setting is None else _WARM_UP_STEPS + 2
        arguments: list[str | Path] = [*script, *self.model(context, steps)]
        if setting is None:
            self.run(arguments, {})
            return int(counted.read_text(encoding="ascii"))
        memtide = ["-m", "memtide", "run", "--quiet", *setting.memtide_arguments(self.stats)]
        self.run([*memtide, *arguments], self.daemon_with(setting.link))
        (pool,) = (pool for pool in self.read_stats()["pools"] if pool["tier"] == "device")
        return int(counted.read_text(encoding="ascii")) + int(pool["capacity_bytes"])

    def read_stats(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.stats.read_text(encoding="utf-8"))
        return content


def measure(options: Options) -> dict[str, list[Pair]]:
    """All samples of the suite."""
    with tempfile.TemporaryDirectory(prefix="mt") as folder:
        runs = _Runs(options, Path(folder))
        samples = _long_sequence(runs, options)
        samples["activations.predicted"] = _predicted(runs, options)
        samples["activations.all_fits"] = _all_fits(runs, options)
    samples["activations.largest_batch"] = [_largest_batch(options)]
    return samples


def _long_sequence(runs: _Runs, options: Options) -> dict[str, list[Pair]]:
    """Four times the sequence, in a budget of 1.05 times what the short one takes. The tensors of a
    single operation come on top: an emulated device does not have them."""
    short = runs.counted_bytes(_SHORT, None)
    samples: dict[str, list[Pair]] = {}
    for name, link in (("fast", _FAST_LINK), ("slow", _SLOW_LINK)):
        setting = _Setting(4 * _SHORT, link, int(1.05 * short) // _MIB * _MIB)
        load = machine.Load(machine.our_processes())
        most = runs.counted_bytes(setting.context, setting)
        peak = Pair(short / _MIB, most / _MIB, load.of_others())
        samples[f"activations.peak_{name}"] = [peak]
        samples[f"activations.step_{name}"] = _steps(runs, options, setting)
    return samples


def _steps(runs: _Runs, options: Options, setting: _Setting) -> list[Pair]:
    """Seconds of a step, against the larger of computing, with the blocks that the plan has
    recomputed (a third of their step is forward), and of the link's time in one direction."""
    pairs = train_overhead.measure(
        train_overhead.StepOptions(
            script=options.script,
            arguments=runs.model(setting.context, 1000),
            memtide_arguments=setting.memtide_arguments(runs.stats),
            most_pairs=options.most_pairs,
            most_seconds=options.most_seconds,
            environment=runs.daemon_with(setting.link),
            warm_up_steps=_WARM_UP_STEPS,
        )
    )
    stats = runs.read_stats()
    moved = max(stats["moved_bytes"][f"{way}_bytes"] for way in _WAYS)
    moved /= _WARM_UP_STEPS + len(pairs)
    again = stats["budget"]["activations"]["outcome"]["plan"]["recomputed"] / _LAYERS / 3
    return [
        Pair(max(pair.limit * (1 + again), moved / setting.link), pair.product, pair.others_cpus)
        for pair in pairs
    ]


def _predicted(runs: _Runs, options: Options) -> list[Pair]:
    """The parts by which measured iterations differ from predicted ones. The limit is the part by
    which a second run of the same setting differs from the first."""
    pairs = []
    contexts = (128,) if options.few else (128, 192, 256)
    parts = (0.5,) if options.few else (0.3, 0.4, 0.5, 0.65, 0.8)
    for context in contexts:
        whole = runs.counted_bytes(context, None)
        for link in (_FAST_LINK, _SLOW_LINK):
            for part in parts:
                setting = _Setting(context, link, int(part * whole) // _MIB * _MIB)
                pairs.append(_prediction(runs, options, setting))
    return pairs


def _prediction(runs: _Runs, options: Options, setting: _Setting) -> Pair:
    load = machine.Load(machine.our_processes())
    outcomes = []
    for _ in range(2):
        arguments = ["-m", "memtide", "run", "--quiet", *setting.memtide_arguments(runs.stats)]
        script = [options.script, *runs.model(setting.context, 12)]
        runs.run([*arguments, *script], runs.daemon_with(setting.link))
        outcomes.append(runs.read_stats()["budget"]["activations"]["outcome"])
    first, second = (outcome.get("measured_s", 0) for outcome in outcomes)
    if not first or not second:
        raise train_overhead.TrainingEnded(f"no plan predicts a step of {setting}")
    error = abs(outcomes[0]["predicted_s"] - first) / first
    return Pair(abs(second - first) / first, error, load.of_others())


def _all_fits(runs: _Runs, options: Options) -> list[Pair]:
    """CPU seconds of a step, with activations in a budget that holds all, against no budget."""
    setting = _Setting(_SHORT, _FAST_LINK, 2 * 2**30)
    return train_overhead.measure_with_cpu(
        train_overhead.StepOptions(
            script=options.script,
            arguments=runs.model(_SHORT, 1000),
            limit_arguments=(
                *("--device=emulated", "--device-pool=1GiB", "--host-pool=1GiB", "--ssd-pool=0"),
            ),
            memtide_arguments=setting.memtide_arguments(runs.stats),
            most_pairs=options.most_pairs,
            most_seconds=options.most_seconds,
            environment=runs.daemon_with(_FAST_LINK),
            steps_per_sample=10,  # CPU times have ticks of 10 ms.
            warm_up_steps=_WARM_UP_STEPS,
        )
    )[1]


def _largest_batch(options: Options) -> Pair:
    """The largest batches that train in a cgroup of 2 GiB without swap: plain torch's, and ours
    among the multiples of it."""
    load = machine.Load(machine.our_processes())
    plain = 1
    step = 16
    while step:
        if _trains(options, plain + step, []):
            plain += step
        else:
            step //= 2
    ours = plain
    for times in (4,) if options.few else (2, 4, 6, 8):
        if not _trains(options, times * plain, ["-m", "memtide", "run", "--quiet"]):
            break
        ours = times * plain
    return Pair(plain, ours, load.of_others())


def _trains(options: Options, batch: int, prefix: list[str]) -> bool:
    """Whether two steps end well. Killed for memory, or ended by memtide, whose error then names
    the flag of a larger budget: no."""
    with tempfile.TemporaryDirectory(prefix="mt") as folder, limited_cgroup(_CGROUP_BYTES) as group:
        ssd = [f"--ssd-dir={folder}"] if prefix else []
        done = subprocess.run(
            [
                *(sys.executable, "-c", ENTER, str(group.path), *prefix, *ssd),
                str(options.heavy_script),
            ],
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    (str(options.heavy_script.parent), os.environ.get("PYTHONPATH", ""))
                ),
                "RESULT": str(Path(folder) / "result"),
                **{"BLOCKS": "12", "BATCH": str(batch), "STEPS": "2"},
            },
        )
    if done.returncode not in (0, -signal.SIGKILL) and _MORE_MEMORY not in done.stderr:
        raise train_overhead.TrainingEnded(done.stderr.strip())
    return done.returncode == 0
