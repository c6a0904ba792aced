"""Trains an unmodified script in a fraction of its device memory, and compares its plain run."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_check.home import Home

# With `--exact` torch steps on the GPU, in the script's process; otherwise the daemon steps on the
# host. That has no goal, because the bound leaves out the host's arithmetic.
_WAYS = {"torch steps": (["--exact"], 1.25), "the daemon steps": ([], None)}
_TOLERANCE = 0.02
_MIB = 2**20


@dataclass(frozen=True)
class Job:
    """The script's arguments, and the pools that it is trained in."""

    arguments: list[str]
    state_bytes: int  # Parameters, gradients and two moments.
    device_pool: int
    host_pool: int
    steps: int
    timeout_s: float


def job_for(home: Home) -> Job:
    """1.3 B parameters in bfloat16 on a GPU; 7 M parameters on the fake CUDA."""
    layers, width, steps, device = (4, 384, 5, "cpu") if home.fake else (24, 2048, 6, "cuda")
    parameters = layers * 12 * width * width
    states = 4 * 2 * parameters
    arguments = ["--layers", layers, "--width", width, "--steps", steps, "--device", device]
    arguments += ["--dtype", "bfloat16", "--batch", 4, "--context", 64 if home.fake else 1024]
    return Job(
        arguments=[str(argument) for argument in arguments],
        state_bytes=states,
        device_pool=max(16 * _MIB, states // 4 // (2 * _MIB) * 2 * _MIB),
        # All states, and the shadow chunks of all but the gradients.
        host_pool=2 * states // (2 * _MIB) * 2 * _MIB + 64 * _MIB,
        steps=steps,
        timeout_s=150,
    )


class FreeMemory:
    """Samples the free memory of the GPU in a thread during the block, and keeps the minimum."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._ended = threading.Event()
        self.before = self.least = ask()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> FreeMemory:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self.least = min(self.least, self._ask())

    @property
    def peak(self) -> int:
        """The most bytes in use, less those in use before the block."""
        return self.before - self.least


def compare(home: Home, free_bytes: Callable[[], int], bytes_per_s: float | None) -> list[dict]:
    """Trains plainly and in each way, and returns the rows. RuntimeError if a run fails."""
    job = job_for(home)
    script = home.path / "examples" / "train_gpt.py"
    with tempfile.TemporaryDirectory() as scratch:
        plain_log, log, stats = (Path(scratch) / name for name in ("plain", "log", "stats"))
        with FreeMemory(free_bytes) as plain_memory:
            _run(home, ["python", script, *job.arguments, "--log", plain_log], job)
        plain = _steps(plain_log)
        states = f"{job.state_bytes / _MIB:.0f} MiB; {job.device_pool / _MIB:.0f} MiB"
        rows: list[dict] = [{"name": "states of the model; device pool", "answer": states}]
        plain_ms = _typical_seconds(plain) * 1e3
        rows.append({"name": "plain step", "value": plain_ms, "unit": "ms"})
        for way, (flags, goal) in _WAYS.items():
            log.unlink(missing_ok=True)
            command = ["memtide", "run", "--quiet", f"--device-pool={job.device_pool}", *flags]
            command += [f"--host-pool={job.host_pool}", "--ssd-pool=0", f"--stats={stats}"]
            with FreeMemory(free_bytes) as memory:
                _run(home, [*command, script, *job.arguments, "--log", log], job)
            figures = json.loads(stats.read_text())
            found = [
                _losses(plain, _steps(log)),
                *_speed(plain_ms, _typical_seconds(_steps(log)) * 1e3, figures, bytes_per_s, goal),
                *_memory(job, plain_memory, memory),
            ]
            rows += [row | {"name": f"{way}: {row['name']}"} for row in found]
    return rows


def _speed(
    plain_ms: float,
    ours_ms: float,
    figures: dict[str, Any],
    bytes_per_s: float | None,
    goal: float | None,
) -> list[dict[str, Any]]:
    moved = _moved_bytes(figures)
    rows: list[dict[str, Any]] = [
        {
            "name": "step",
            "value": ours_ms,
            "unit": "ms",
            "note": f"{figures['daemon_steps']} steps by the daemon, "
            f"{figures['speculative_steps']['counted']} parts of them during backward",
        },
        {"name": "bytes over the link per step", "value": moved / _MIB, "unit": "MiB"},
    ]
    if bytes_per_s:
        moving_ms = moved / bytes_per_s * 1e3
        bound_ms = max(plain_ms, moving_ms)
        rows.append(
            {
                "name": "step, states 4x the device pool, against the larger of compute and "
                "transfer",
                "value": ours_ms / bound_ms,
                "unit": "x",
                **({"at_most": goal} if goal is not None else {}),
                "note": f"bound {bound_ms:.0f} ms: {plain_ms:.0f} of compute, {moving_ms:.0f} of "
                "transfer",
            }
        )
    return rows


def _run(home: Home, command: list[Any], job: Job) -> None:
    import sys

    head = [sys.executable] if command[0] == "python" else [sys.executable, "-m", "memtide"]
    done = home.run([*head, *command[1:]], job.timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}:\n{done.stderr}")


def _steps(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _losses(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [
        (float.fromhex(a["loss"]), float.fromhex(b["loss"]))
        for a, b in zip(plain, ours, strict=True)
    ]
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    return {
        "name": f"losses of {len(pairs)} steps against the plain run's",
        "answer": "equal to the bit" if worst == 0 else f"differ by {worst:.2e} at most",
        "goal": f"within {_TOLERANCE:g}",
        "met": worst <= _TOLERANCE,
    }


def _typical_seconds(steps: list[dict[str, Any]]) -> float:
    # The first two steps create the states, compile kernels and fill pools.
    seconds = sorted(step["seconds"] for step in steps[2:])
    return seconds[len(seconds) // 2]


def _moved_bytes(figures: dict[str, Any]) -> float:
    """The bytes of the last step in the busier direction, as both directions copy at once."""
    record = figures["records"][-1]
    moved = record["moved_bytes"]
    busier = max(moved["host_to_device_bytes"], moved["device_to_host_bytes"])
    return busier / record["iterations"]


def _memory(job: Job, plain: FreeMemory, ours: FreeMemory) -> list[dict[str, Any]]:
    if not plain.before:  # Without a GPU there is nothing to sample.
        return []
    # The memory beside states: activations, workspaces, and the script's context.
    rest = max(0, plain.peak - job.state_bytes)
    limit = job.device_pool + rest + 2 * 2**30
    return [
        {
            "name": "device memory of the plain run at its peak",
            "value": plain.peak / _MIB,
            "unit": "MiB",
        },
        {
            "name": "device memory of script and pool at their peak",
            "value": ours.peak / _MIB,
            "unit": "MiB",
            "at_most": limit / _MIB,
            "note": "limit: the pool, what the plain run used besides states, and 2 GiB for a "
            "second context and what torch caches",
        },
    ]
