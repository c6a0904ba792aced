"""Shapes of Llama in a part of their states' memory, beside a public record and DeepSpeed: that of
Llama-3-8B in 8.8 GiB of a card of 80 GB, and that of Llama-3.2-1B in a quarter."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check import training
from gpu_check.facts import gpu_bytes, memory_bytes
from gpu_check.parts import Bench
from gpu_check.rows import failed, skipped
from gpu_check.training import GIB, MIB, WARM_UP_STEPS, Job, Trained
from gpu_check.training_parts import in_a_quarter, same_bits, within_budget

_Rows = Iterator[dict[str, Any]]
# A public record of another program has 0.83 there, in the same shape, formats and tokens.
_GOAL = 0.88
_PARAMETERS = 8_030_261_248
_POOL = int(8.8 * GIB)
# The public record has 10,302 tokens/s at 8.8 GiB, and 10,659 at 18.
_BUDGET, _RECORD, _RECORD_IN_18 = 12 * GIB, 10_302, 10_659
_CARD_GB, _SMALL_CARD_GB = 80, 32  # As cards are sold: they have up to a 20th less.
# The loss of a step shows the bits of the steps before it.
_REPEATS = ("--deterministic-steps", "3", "--steps", "3", "--micro-batches", "1")
_SMALL_SHAPE = "--layers 16 --width 2048 --hidden 8192 --micro-batches 2 --steps 5"
_SMALL_PARAMETERS = 1_498_482_688
_SMALL_TOKENS = 2 * 16 * 1024
# DeepSpeed's optimizer has parameters and both moments in fp32, and gradients, in host memory.
_PEER_BYTES, _SMALL_PEER_BYTES = 16 * _PARAMETERS, 16 * _SMALL_PARAMETERS


def llama(bench: Bench) -> _Rows:
    """All in memory, and in a pool of 8.8 GiB."""
    job, pool, tokens = _job(bench)
    name = "ours / plain, device pool of 8.8 GiB"
    wants = _wants(bench, job.state_bytes * 5 // 4, _CARD_GB)
    if wants:
        yield skipped(name, wants)
        return
    plain = training.plain(bench, job)
    yield _speed("plain", tokens, plain)
    ours = training.under_memtide(bench, job, pool)
    yield _speed("ours, device pool of 8.8 GiB", tokens, ours)
    ratio = plain.seconds("") / ours.seconds("")
    yield {"name": name, "value": ratio, "unit": "x", "at_least": _GOAL}
    # A run of its own, as kernels that repeat their bits are slower than those that are timed.
    exact = replace(job, arguments=(*job.arguments, *_REPEATS))
    steps = training.plain(bench, exact).steps, training.under_memtide(bench, exact, pool).steps
    yield from same_bits("device pool of 8.8 GiB: ", *steps)
    if ours.peak_bytes:
        yield {
            "name": "device memory of script and pool at their peak",
            "value": ours.peak_bytes / GIB,
            "unit": "GiB",
        }


def embedding(bench: Bench) -> _Rows:
    """The shape of Llama-3.2-1B, whose embedding has a step of more chunks than may be leased."""
    name = "1B, ours, device pool of a quarter"
    wants = _wants(bench, 8 * _SMALL_PARAMETERS, _SMALL_CARD_GB)
    if wants:
        yield skipped(f"{name}: speed", wants)
        return
    job, pool, tokens = _small_job(bench)
    exact = replace(job, arguments=(*job.arguments, *_REPEATS))
    steps = training.plain(bench, exact).steps, training.under_memtide(bench, exact, pool).steps
    yield from same_bits("1B, device pool of a quarter: ", *steps)
    ours = training.under_memtide(bench, job, pool)
    yield _speed(name, tokens, ours)


def budget(bench: Bench) -> _Rows:
    """The public record's settings: 32 sequences, and a budget of all that the device holds but
    contexts. Plain torch does not fit, and part llama-8b has its speed with blocks computed twice.
    """
    job, _, tokens = _job(bench)
    name = "blocks computed once, 12 GiB of the device: speed"
    wants = _wants(bench, job.state_bytes * 5 // 4, _CARD_GB)
    if wants:
        yield skipped(name, wants)
        return
    limit = _BUDGET if not bench.home.fake else 80 * MIB
    shape = "" if bench.home.fake else "--sequences 32 --micro-batches 4"
    once = job.with_more(f"{shape} --loss-pieces 32 --no-checkpoint")
    twice = job.with_more(f"{shape} --loss-pieces 32 --steps 3")
    for blocks, each, goal in (("once", once, _RECORD), ("twice", twice, None)):
        ours = training.under_memtide(bench, each, None, (f"--device-memory={limit}",))
        row = _speed(f"blocks computed {blocks}, 12 GiB of the device", tokens, ours)
        yield row | ({} if goal is None else {"at_least": goal})
        yield within_budget(f"blocks computed {blocks}: ", limit, ours)


def compiled(bench: Bench) -> _Rows:
    """The public record's settings in its budgets, with blocks computed once: compiled, and not."""
    job, _, tokens = _job(bench)
    name = "compiled blocks, 8.8 GiB of the device: speed"
    wants = _wants(bench, job.state_bytes * 5 // 4, _CARD_GB)
    if wants:
        yield skipped(name, wants)
        return
    backend, shape = "aot_eager", ""
    if not bench.home.fake:
        backend, shape = "inductor", "--sequences 32 --micro-batches 4"
    once = job.with_more(f"{shape} --loss-pieces 32 --no-checkpoint")
    blocks = once.with_more(f"--compile {backend}")
    for what, each, gib, goal in (
        ("compiled blocks", blocks, 8.8, _RECORD),
        ("compiled blocks", blocks, 18, _RECORD_IN_18),
        ("eager blocks", once.with_more("--steps 3"), 8.8, None),
    ):
        limit = int(gib * GIB) if not bench.home.fake else 80 * MIB
        head = f"{what}, {gib} GiB of the device"
        try:
            ours = training.under_memtide(bench, each, None, (f"--device-memory={limit}",))
        except RuntimeError as error:  # A budget that is too small is an answer.
            yield failed(f"{head}: speed", str(error))
            continue
        yield _speed(head, tokens, ours) | ({} if goal is None else {"at_least": goal})
        yield within_budget(f"{head}: ", limit, ours)


def fully_sharded(bench: Bench) -> _Rows:
    """The 1B shape with parameters, gradients and moments in fp32, 16 bytes a parameter, in host
    memory for both; steps on the host for both."""
    name = "1B in fp32, ours, steps on the host / FSDP2"
    wants = _fp32_wants(bench)
    if wants:
        yield skipped(name, wants)
        return
    job, _, tokens = _small_job(bench)
    # The fake device's tensors have neither autocast nor collectives.
    how = "--device cpu --fsdp" if bench.home.fake else "--dtype float32 --fsdp"
    theirs = training.plain(bench, job.with_more(how))
    yield _speed("1B in fp32, FSDP2 with CPU offload", tokens, theirs)
    yield from _fp32_on_host(bench, "FSDP2", theirs)


def _fp32_on_host(bench: Bench, other: str, theirs: Trained) -> _Rows:
    """Ours with as many bytes a parameter as the other has, and steps where the other has them."""
    head = "1B in fp32, ours, steps on the host"
    if wants := _fp32_wants(bench):
        yield skipped(f"{head} / {other}", wants)
        return
    job, _, tokens = _small_job(bench)
    if not bench.home.fake:
        job = job.with_more("--dtype float32 --autocast", 2 * job.state_bytes)
    job, pool = in_a_quarter(job)
    ours = training.under_memtide(bench, job, pool, steps_on_host=True)
    yield _speed(head, tokens, ours)
    ratio = theirs.seconds("") / ours.seconds("")
    yield {"name": f"{head} / {other}", "value": ratio, "unit": "x", "at_least": 1.0}


def _fp32_wants(bench: Bench) -> str:
    # All states twice, for shadow chunks, and the script's own memory.
    return _wants(bench, 3 * _SMALL_PEER_BYTES, _SMALL_CARD_GB)


def peer(bench: Bench) -> _Rows:
    """The same script under DeepSpeed's ZeRO-Offload, on the same card."""
    job, _, tokens = _job(bench)
    name = "DeepSpeed ZeRO-Offload: speed"
    wants = _peer_wants(bench, _PEER_BYTES, _CARD_GB)
    if wants:
        yield skipped(name, wants)
        return
    theirs = training.plain(bench, replace(job, arguments=(*job.arguments, "--deepspeed")))
    yield _speed("DeepSpeed ZeRO-Offload", tokens, theirs)
    ours = [
        float(row["value"])
        for row in bench.rows_of("llama-8b")
        if row["name"] == "ours, device pool of 8.8 GiB: speed"
    ]
    if ours:
        ratio = ours[0] * theirs.seconds("") / tokens
        yield {"name": "ours / DeepSpeed", "value": ratio, "unit": "x", "at_least": 1.0}
    else:
        yield skipped("ours / DeepSpeed", "the part llama-8b has not run before this one")


def small_peer(bench: Bench) -> _Rows:
    """A smaller shape, whose states under DeepSpeed most hosts have room for, three times."""
    name = "1B, ours / DeepSpeed"
    wants = _peer_wants(bench, _SMALL_PEER_BYTES, _SMALL_CARD_GB)
    if wants:
        yield skipped(name, wants)
        return
    job, pool, tokens = _small_job(bench)
    plain = training.plain(bench, job)
    yield _speed("1B, plain", tokens, plain)
    ours = training.under_memtide(bench, job, pool)
    yield _speed("1B, ours, device pool of a quarter", tokens, ours)
    theirs = training.plain(bench, replace(job, arguments=(*job.arguments, "--deepspeed")))
    yield _speed("1B, DeepSpeed ZeRO-Offload", tokens, theirs)
    ratio = plain.seconds("") / ours.seconds("")
    yield {"name": "1B, ours / plain", "value": ratio, "unit": "x"}
    ratio = theirs.seconds("") / ours.seconds("")
    yield {"name": name, "value": ratio, "unit": "x", "at_least": 1.0}
    yield from _fp32_on_host(bench, "DeepSpeed", theirs)


def _small_job(bench: Bench) -> tuple[Job, int, int]:
    """As `_job`, of Llama-3.2-1B's shape, in a quarter."""
    job, pool, tokens = _job(bench)
    if bench.home.fake:
        return job, pool, tokens
    small = Job(job.script, ("--device", "cuda", *_SMALL_SHAPE.split()), 8 * _SMALL_PARAMETERS)
    return *in_a_quarter(small), _SMALL_TOKENS


def _job(bench: Bench) -> tuple[Job, int, int]:
    """The job, its device pool in bytes, and its tokens in a step; a toy on the fake CUDA."""
    script = Path(__file__).resolve().parent / "llama.py"
    if not bench.home.fake:
        return Job(script, ("--device", "cuda"), 8 * _PARAMETERS), _POOL, 128 * 1024
    # The step of its embedding needs more chunks at once than the pool has: a small model with
    # a large vocabulary.
    toy = (
        "--layers 3 --width 128 --heads 4 --kv-heads 2 --hidden 512 --vocabulary 16384 "
        "--sequence 16 --sequences 2 --micro-batches 2 --steps 5 --device fakegpu --dtype float32"
    )
    return Job(script, tuple(toy.split()), 76 * MIB), 24 * MIB, 64


def _peer_wants(bench: Bench, host_bytes: int, card_gb: int) -> str:
    """As `_wants`, for a run under DeepSpeed."""
    if importlib.util.find_spec("deepspeed") is None:
        return "this Python has no deepspeed: install it beside torch"
    return _wants(bench, host_bytes, card_gb)


def _wants(bench: Bench, host_bytes: int, card_gb: int) -> str:
    """Why this machine cannot make the check; empty: it can, or the fake CUDA has a toy of it."""
    if bench.home.fake:
        return ""
    card, free = gpu_bytes(bench.home), memory_bytes("MemAvailable")
    if card < 0.95 * card_gb * GIB:
        return f"needs a card of {card_gb} GB; this one has {card / GIB:.0f} GiB"
    if free < host_bytes:
        return f"needs {host_bytes / GIB:.0f} GiB of host memory; {free / GIB:.0f} GiB are free"
    return ""


def _speed(name: str, tokens: int, trained: Trained) -> dict[str, Any]:
    timed = len(trained.steps) - WARM_UP_STEPS
    return {
        "name": f"{name}: speed",
        "value": tokens / trained.seconds(""),
        "unit": "tokens/s",
        "note": f"median of {timed} steps" if timed > 1 else "one timed step",
    }
