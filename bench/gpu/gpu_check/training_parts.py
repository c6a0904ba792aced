"""Training in all, and in a part, of the memory that a script's states need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpu_check import training
from gpu_check.parts import Bench
from gpu_check.training import GIB, MIB, Job, Trained

_Rows = Iterator[dict[str, Any]]
# The losses of steps in parts: in bfloat16, other roundings than those of the GPU.
_TOLERANCE = 1e-3
_FITS_GOAL = 1.1
# Rows of the part copies: the rates of the link to the device, from it, and of both at once.
_LINK = (
    "64 MiB from the host pool to the device",
    "64 MiB from the device to the host pool",
    "64 MiB both ways at once",
)
_EXACT_GOAL = 1.25
_CLIPPED_GOAL = 1.05


def fits(bench: Bench) -> _Rows:
    """All states in the pool: what memtide costs where nothing moves."""
    job = training.gpt(bench.home)
    plain = training.plain(bench, job)
    pool = job.state_bytes * 5 // 4 // (2 * MIB) * 2 * MIB + 64 * MIB
    ours = training.under_memtide(bench, job, pool)
    few, _, many = job.phases
    yield {"name": "plain step, few tokens", "value": plain.seconds(few) * 1e3, "unit": "ms"}
    yield {"name": "plain step, many tokens", "value": plain.seconds(many) * 1e3, "unit": "ms"}
    for phase, size, goal in ((few, "few", None), (many, "many", _FITS_GOAL)):
        yield {
            "name": f"fits / plain, {size} tokens",
            "value": ours.seconds(phase) / plain.seconds(phase),
            "unit": "x",
            "note": f"{phase} sequences in a step",
            **({} if goal is None else {"at_most": goal}),
        }
    yield from same_bits("fits: ", plain.steps, ours.steps)
    yield _emptied("fits: ", ours)


def quarter(bench: Bench) -> _Rows:
    """A quarter of the states in the pool; torch steps on the GPU, to the bit."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    plain = training.plain(bench, job)
    few, clipped, _ = job.phases
    states = f"{job.state_bytes / MIB:.0f} MiB; {pool / MIB:.0f} MiB"
    yield {"name": "states of the model; device pool", "answer": states}
    exact = training.under_memtide(bench, job.with_phases(few, clipped), pool)
    yield from same_bits("torch steps: ", plain.of(few), exact.of(few))
    yield from same_bits("torch steps, clipped: ", plain.of(clipped), exact.of(clipped))
    yield from _speed(bench, "torch steps: ", few, plain, exact, _EXACT_GOAL)
    yield from _parts_of_a_step("torch steps: ", exact.figures)
    ratio = exact.seconds(clipped) / exact.seconds(few)
    name = "torch steps: a clipped step / one that is not"
    yield {"name": name, "value": ratio, "unit": "x", "at_most": _CLIPPED_GOAL}
    yield _emptied("torch steps: ", exact)
    yield from _memory(job, pool, "torch steps: ", plain, exact)


def named_job(bench: Bench) -> _Rows:
    """The same as a named job, whose steps are in parts, on the host."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    plain = training.plain(bench, job)
    few, clipped, _ = job.phases
    stepped = training.under_memtide(bench, job.with_phases(few, clipped), pool, named=True)
    yield _close("steps in parts: ", plain.of(few), stepped.of(few))
    yield _close("steps in parts, clipped: ", plain.of(clipped), stepped.of(clipped))
    # No goal: the bound leaves out the host's arithmetic.
    yield from _speed(bench, "steps in parts: ", few, plain, stepped, None)
    yield from _memory(job, pool, "steps in parts: ", plain, stepped)


def chunk_sizes(bench: Bench) -> _Rows:
    """The same in chunks of other sizes than the one that memtide chooses."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    few = job.phases[0]
    plain = training.plain(bench, job)
    # The smallest chunk is the only one of which a tiny pool has enough.
    sizes = (
        {"16 MiB": "2MiB"} if bench.home.fake else {f"{n} MiB": f"{n}MiB" for n in (16, 32, 128)}
    )
    for name, size in sizes.items():
        flags = (f"--chunk-size={size}",)
        ours = training.under_memtide(bench, job.with_phases(few), pool, flags)
        yield from same_bits(f"chunks of {name}: ", plain.of(few), ours.steps)
        yield {
            "name": f"chunks of {name}: step",
            "value": ours.seconds(few) * 1e3,
            "unit": "ms",
            "note": f"--chunk-size={size}",
        }


def collectives(bench: Bench) -> _Rows:
    """Collectives of one process write parameters and gradients in place. They change no value, so
    that the losses are those of a plain run without them."""
    job, pool = in_a_quarter(training.gpt(bench.home))
    few = job.phases[0]
    if bench.home.fake:  # Gloo and tensors on the CPU: no backend has collectives for fakegpu.
        job = replace(job, arguments=(*job.arguments, "--device", "cpu"))
    plain = training.plain(bench, job)
    alone = replace(job, arguments=(*job.arguments, "--collectives"), phases=(few,))
    ours = training.under_memtide(bench, alone, pool, tensors_on_cpu=bench.home.fake)
    yield from same_bits("in place, in a quarter: ", plain.of(few), ours.steps)
    yield _emptied("in place, in a quarter: ", ours)


def in_a_quarter(job: Job) -> tuple[Job, int]:
    """The job, and a device pool of a quarter of its states."""
    return job, max(16 * MIB, job.state_bytes // 4 // (2 * MIB) * 2 * MIB)


def same_bits(head: str, plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> _Rows:
    """Whether two runs have said the same in each step. `head`: the beginning of the row's name."""
    both = [[(step["loss"], step["norm"]) for step in steps] for steps in (plain, ours)]
    answer = _first_difference(*both)
    yield {
        "name": f"{head}losses and norms against the plain run's",
        "answer": answer or "equal to the bit",
        "goal": "equal to the bit",
        "met": not answer,
        "note": f"{len(plain)} steps",
    }


def _first_difference(plain: list[Any], ours: list[Any]) -> str:
    if len(plain) != len(ours):
        return f"{len(ours)} steps"
    number = next((i for i, (a, b) in enumerate(zip(plain, ours, strict=True)) if a != b), None)
    return "" if number is None else f"differ from step {number + 1} on"


def _close(head: str, plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [
        (float.fromhex(a["loss"]), float.fromhex(b["loss"]))
        for a, b in zip(plain, ours, strict=True)
    ]
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    return {
        "name": f"{head}losses against the plain run's",
        "answer": "equal to the bit" if worst == 0 else f"differ by {worst:.2e} at most",
        "goal": f"within {_TOLERANCE:g}",
        "met": worst <= _TOLERANCE,
    }


def within_budget(head: str, limit: int, ours: Trained) -> dict[str, Any]:
    """The part of --device-memory that a run has used, and the device's peak with contexts."""
    used = ours.figures["budget"]["device_most_used_bytes"]
    return {
        "name": f"{head}script and pool, of --device-memory",
        "value": used / limit,
        "unit": "x",
        "at_most": 1.0,
        "note": f"the device's peak with contexts: {ours.peak_bytes / GIB:.2f} GiB",
    }


def _emptied(head: str, ours: Trained) -> dict[str, Any]:
    calls = sum(step["emptied"] for step in ours.steps[1:])
    return {
        "name": f"{head}calls of empty_cache after the first step",
        "answer": str(calls),
        "goal": "0",
        "met": calls == 0,
    }


def _speed(
    bench: Bench, head: str, phase: str, plain: Trained, ours: Trained, goal: float | None
) -> _Rows:
    moved = _moved_bytes(ours.figures)
    # Both directions copy at once.
    busier = max(moved)
    ours_ms, plain_ms = ours.seconds(phase) * 1e3, plain.seconds(phase) * 1e3
    yield {
        "name": f"{head}step",
        "value": ours_ms,
        "unit": "ms",
        "note": f"{ours.figures['offloaded_steps']} steps in parts, "
        f"{ours.figures['speculative_steps']['counted']} parts of them during backward",
    }
    yield {"name": f"{head}bytes over the link per step", "value": busier / MIB, "unit": "MiB"}
    moving_s = transfer_s(bench, *moved)
    if moving_s is None:
        yield {
            "name": f"{head}step against the larger of compute and transfer",
            "answer": "unknown",
            "note": "the part copies, which measures the link, has not run before this one",
        }
        return
    moving_ms = moving_s * 1e3
    bound_ms = max(plain_ms, moving_ms)
    yield {
        "name": f"{head}step against the larger of compute and transfer",
        "value": ours_ms / bound_ms,
        "unit": "x",
        **({} if goal is None else {"at_most": goal}),
        "note": f"bound {bound_ms:.0f} ms: {plain_ms:.0f} of compute, {moving_ms:.0f} of transfer",
    }


def _parts_of_a_step(head: str, figures: dict[str, Any]) -> _Rows:
    """Waits and the time of hooks in the last steps, each by step, and how often."""
    record = figures["records"][-1]
    waits, hooks, counts = record["waits_s"], record["hooks"], record["client"]
    for name, seconds, number in (
        ("calls to the daemon", waits["call"], counts["calls"]),
        ("maps", waits["map"], counts["maps"]),
        ("unmaps before leases", waits["unmap"], None),
        ("gradients moved", hooks["gradient_ns"] / 1e9, hooks["gradients"]),
        ("operations dispatched", hooks["dispatch_ns"] / 1e9, hooks["operations"]),
    ):
        note = "" if number is None else f"{number / record['iterations']:.0f} of them"
        value = seconds * 1e3 / record["iterations"]
        yield {"name": f"{head}{name}, a step", "value": value, "unit": "ms", "note": note}


def transfer_s(bench: Bench, in_bytes: float, out_bytes: float) -> float | None:
    """The least time for both: each direction has its rate, and the two together have one, as the
    part copies has measured them."""
    found = {row["name"]: row.get("value") for row in bench.rows_of("copies")}
    rates = [found.get(name) for name in _LINK]
    if None in rates:
        return None
    moved = (in_bytes, out_bytes, in_bytes + out_bytes)
    return max(part / rate / 1e9 for part, rate in zip(moved, rates, strict=True))


def _moved_bytes(figures: dict[str, Any]) -> tuple[float, float]:
    """The bytes of the last step to the device, and from it."""
    record = figures["records"][-1]
    moved = record["moved_bytes"]
    each = (moved["host_to_device_bytes"], moved["device_to_host_bytes"])
    return each[0] / record["iterations"], each[1] / record["iterations"]


def _memory(job: Job, pool: int, head: str, plain: Trained, ours: Trained) -> _Rows:
    if not plain.peak_bytes:  # Without a GPU there is nothing to sample.
        return
    # The memory beside states: activations, workspaces, and the script's context.
    rest = max(0, plain.peak_bytes - job.state_bytes)
    yield {
        "name": f"{head}device memory of script and pool at their peak",
        "value": ours.peak_bytes / MIB,
        "unit": "MiB",
        "at_most": (pool + rest + 2 * GIB) / MIB,
        "note": "limit: the pool, what the plain run used besides states, and 2 GiB for a second "
        "context and what torch caches",
    }
