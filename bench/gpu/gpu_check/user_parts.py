"""Training as users do it: with activations, SSDs, compiled blocks, Triton, autocast, LoRA, a base
in few bits; the time of short steps, and the curve of memory against speed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check import training
from gpu_check.parts import Bench
from gpu_check.rows import failed, skipped
from gpu_check.training import GIB, MIB, Job, Trained
from gpu_check.training_parts import in_a_quarter, same_bits, within_budget

_Rows = Iterator[dict[str, Any]]
_FEW_STEPS = 6
# Parts of a plain run's device memory, states and activations, and the goal for each: a step's
# speed as a part of plain's.
_FRONTIER = {10: 0.80, 15: 0.88, 25: 0.93, 40: 0.97, 60: 0.99}
_ACTIVATIONS_PERCENT = 40


def short_step(bench: Bench) -> _Rows:
    """Twelve steps with few tokens, in a quarter, with two sizes of chunks, and where they wait."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    few = job.phases[0]
    plain = training.plain(bench, job).of(few)
    twelve = job.with_phases(few).with_more("--steps 12")
    # The smallest chunk is the only one of which a tiny pool has enough.
    for mib in (2,) if bench.home.fake else (64, 128):
        ours = training.under_memtide(bench, twelve, pool, (f"--chunk-size={mib}MiB",))
        head = f"chunks of {mib if not bench.home.fake else 64} MiB: "
        yield from same_bits(head, plain, ours.steps[: len(plain)])
        yield from _waits(head, ours)


def _waits(head: str, ours: Trained) -> _Rows:
    """A step's time and spread, and the counters of the last record, for each of its steps."""
    times = sorted(step["seconds"] for step in ours.steps[training.WARM_UP_STEPS :])
    spread = f"from {times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f}, {len(times)} steps"
    median_ms = times[len(times) // 2] * 1e3
    yield {"name": f"{head}step", "value": median_ms, "unit": "ms", "note": spread}
    record = ours.figures["records"][-1]
    steps = record["iterations"]
    for name, seconds in record["waits_s"].items():
        what = f"{head}a step's waits for leases: {name}"
        yield {"name": what, "value": seconds / steps * 1e3, "unit": "ms"}
    for name in ("calls", "maps"):
        yield {"name": f"{head}{name} a step", "value": record["client"][name] / steps, "unit": ""}
    for name, way in (("host_to_device_bytes", "in"), ("device_to_host_bytes", "out")):
        moved_mib = record["moved_bytes"][name] / steps / MIB
        yield {"name": f"{head}moved {way} a step", "value": moved_mib, "unit": "MiB"}


def activations(bench: Bench) -> _Rows:
    """A script that checkpoints nothing, in 40% of the memory that its plain run has, and beside
    the script with checkpoints of its own."""
    job = _many(bench).with_more("--steps 8")
    plain = training.plain(bench, job)
    limit = _part_of(bench, plain, _ACTIVATIONS_PERCENT)
    ours = training.under_memtide(bench, job, None, (f"--device-memory={limit}",))
    yield from same_bits("activations: ", plain.steps, ours.steps)
    yield _ratio("activations: step / plain", ours, plain)
    yield within_budget("activations: ", limit, ours)
    checkpointed = training.plain(bench, job.with_more("--checkpoint"))
    yield _ratio("checkpoints of the script: step / plain", checkpointed, plain)


def frontier(bench: Bench) -> _Rows:
    """The speed at several parts of the plain run's memory."""
    job = _many(bench).with_more(f"--steps {_FEW_STEPS if not bench.home.fake else 4}")
    plain = training.plain(bench, job)
    # On the fake CUDA they say no more than that they run.
    points = [*_FRONTIER][:: 2 if bench.home.fake else 1]
    for percent, goal in ((percent, _FRONTIER[percent]) for percent in points):
        head = f"{percent}% of states and activations"
        limit = _part_of(bench, plain, percent)
        try:
            ours = training.under_memtide(bench, job, None, (f"--device-memory={limit}",))
        except RuntimeError as error:  # A budget that is too small ends one point of the curve.
            yield failed(f"{head}: plain / step", str(error))
            continue
        yield from same_bits(f"{head}: ", plain.steps, ours.steps)
        yield _ratio(f"{head}: plain / step", plain, ours) | {"at_least": goal}


def _many(bench: Bench) -> Job:
    job = training.gpt(bench.home)
    return job.with_phases(job.phases[-1])


def _part_of(bench: Bench, plain: Trained, percent: int) -> int:
    # Less is refused: a tiny model has other parts than those that the rows name.
    least = 64 * MIB if bench.home.fake else 0
    return max(least, plain.tensor_bytes * percent // 100 // (2 * MIB) * 2 * MIB)


def _ratio(name: str, ours: Trained, plain: Trained) -> dict[str, Any]:
    """The times of two runs of one phase."""
    phase = plain.steps[0]["phase"]
    return {"name": name, "value": ours.seconds(phase) / plain.seconds(phase), "unit": "x"}


def ssd(bench: Bench) -> _Rows:
    """A quarter of the states on the device, half of them in host memory, and all on SSD."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    job = job.with_phases(job.phases[0]).with_more(f"--steps {_FEW_STEPS}")
    plain = training.plain(bench, job)
    host_pool = job.state_bytes // 2 // (2 * MIB) * 2 * MIB
    flags = (f"--host-pool={host_pool}", f"--ssd-pool={2 * job.state_bytes + GIB}")
    ours = training.under_memtide(bench, job, pool, flags)
    yield from same_bits("SSD: ", plain.steps, ours.steps)
    yield _ratio("SSD: step / plain", ours, plain)
    record = ours.figures["records"][-1]
    read_mib = record["moved_bytes"]["ssd_read_bytes"] / record["iterations"] / MIB
    yield {"name": "SSD: read a step", "value": read_mib, "unit": "MiB"}


def compiled(bench: Bench) -> _Rows:
    """Compiled blocks in a quarter. The plain run is compiled, too."""
    backend = "aot_eager" if bench.home.fake else "inductor"
    yield from _variant(bench, "compiled blocks", f"--compile {backend}")


def autocast(bench: Bench) -> _Rows:
    """300 M parameters in float32, computed in bfloat16."""
    # The fake device's tensors have no autocast, those of the CPU have.
    shape = "--device cpu" if bench.home.fake else "--width 1024 --dtype float32"
    yield from _variant(bench, "autocast", f"--autocast {shape}", 16 * 24 * 12 * 1024**2)


def lora(bench: Bench) -> _Rows:
    """Adapters over a frozen base in bfloat16."""
    yield from _variant(bench, "LoRA", "--lora 16", 2 * 24 * 12 * 2048**2)


def quantized_base(bench: Bench) -> _Rows:
    """Adapters over a base that is buffers of int8, and of 4 bits."""
    weights = 24 * 12 * 2048**2
    yield from _variant(bench, "LoRA over int8", "--lora 16 --quantized 8", weights)
    yield from _variant(bench, "LoRA over 4 bits", "--lora 16 --quantized 4", weights // 2)


def _variant(bench: Bench, name: str, more: str, state_bytes: int | None = None) -> _Rows:
    """A variant of the GPT in a quarter of its states, against the same in plain torch."""
    job = training.gpt(bench.home)
    job = job.with_phases(job.phases[0]).with_more(f"--steps {_FEW_STEPS} {more}")
    if state_bytes is not None and not bench.home.fake:
        job = job.with_more("", state_bytes)
    job, pool = in_a_quarter(job)
    plain = training.plain(bench, job)
    on_cpu = "--device cpu" in more
    ours = training.under_memtide(bench, job, pool, tensors_on_cpu=on_cpu)
    yield from same_bits(f"{name}: ", plain.steps, ours.steps)
    yield _ratio(f"{name}: step / plain", ours, plain)


def triton(bench: Bench) -> _Rows:
    """A Triton kernel over a module's own weight, which takes addresses past the dispatcher."""
    names = {flag: f"a Triton norm{words}" for flag, words in _HOLDING.items()}
    if bench.home.fake or importlib.util.find_spec("triton") is None:
        why = "no GPU for Triton's kernels" if bench.home.fake else "this Python has no triton"
        yield from (
            skipped(f"{name}: losses and norms against the plain run's", why)
            for name in names.values()
        )
        return
    script = Path(__file__).resolve().parent / "triton_norm.py"
    job, pool = in_a_quarter(Job(script, ("--device", "cuda"), 8 * 12 * 4096**2))
    plain = training.plain(bench, job)
    for flag, name in names.items():
        try:
            ours = training.under_memtide(bench, job.with_more(flag), pool)
        except RuntimeError as error:  # Without a hold, an illegal address is an answer.
            yield failed(f"{name}: losses and norms against the plain run's", str(error))
            continue
        yield from same_bits(f"{name}: ", plain.steps, ours.steps)


_HOLDING = {"--hold": " with memtide.hold", "": " without it"}
