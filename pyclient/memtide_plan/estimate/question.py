"""The PlanQuestion (planning.proto) of one training on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training

from memtide_plan.estimate.pools import Pools, states_bytes, transient_bytes
from memtide_plan.estimate.work import Rates, Work

# A device's pool has at least one slot for this number of all chunks.
_CHUNKS_A_SLOT = 10
_CHUNK_STEP = 2 << 20  # Bytes. CUDA maps multiples of it.
_LARGEST_CHUNK = 1 << 30  # The engine has no larger ones.
_LINK_LATENCY_NS, _DRIVE_LATENCY_NS = 10_000, 100_000
_CHOICES = {
    None: "ACTIVATION_CHOICE_UNSPECIFIED",
    "keep": "ACTIVATION_CHOICE_KEEP",
    "move": "ACTIVATION_CHOICE_MOVE_TO_HOST",
    "recompute": "ACTIVATION_CHOICE_RECOMPUTE",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that a question is made from."""

    model: Model
    training: Training
    machine: Machine
    works: tuple[Work, ...]
    pools: Pools
    accumulation: int
    step_on: str  # "host" or "device".
    step_in_backward: bool
    replays: int
    foreseen: bool
    # The engine plays about this number of chunks, as its time is by chunk, but none smaller than
    # those of a run.
    played_chunks: int
    run_chunk_bytes: int


def step_bytes(training: Training) -> float:
    """The bytes of memory that the optimizer passes for each parameter: it reads all, and writes
    all but the gradient."""
    states = training.states
    return 2 * states.weight + states.gradient + 2 * states.optimizer


def played_chunk_bytes(setting: Setting) -> int:
    """The size of chunks in the engine's replay."""
    saved = sum(work.block.count * work.saved_bytes() for work in setting.works)
    all_bytes = states_bytes(setting.model, setting.training.states) + saved
    computing = setting.pools.device or setting.pools.host
    size = min(
        all_bytes / setting.played_chunks, computing * _CHUNKS_A_SLOT / setting.played_chunks
    )
    played = max(1, round(size / _CHUNK_STEP)) * _CHUNK_STEP
    return min(_LARGEST_CHUNK, max(played, setting.run_chunk_bytes))


def question(setting: Setting, rates: Rates) -> dict[str, Any]:
    """The question, as protobuf's JSON."""
    machine, states = setting.machine, setting.training.states
    memory = (
        rates.memory_bytes_per_s if setting.step_on == "device" else machine.host_memory_bytes_per_s
    )
    both = machine.to_device_bytes_per_s + machine.from_device_bytes_per_s
    share = min(1.0, (machine.both_ways_bytes_per_s or both) / both)
    drive = machine.drive
    arenas = {"PARAMETER": states.weight, "GRADIENT": states.gradient}
    if states.optimizer:
        arenas["OPTIMIZER_STATE"] = states.optimizer
    return {
        "blocks": _blocks(setting.works),
        "arenas": [
            {"kind": f"CHUNK_KIND_{kind}", "bytes_per_parameter": size}
            for kind, size in arenas.items()
            if size
        ],
        "micro_batches": setting.accumulation,
        "chunk_bytes": played_chunk_bytes(setting),
        "device_bytes": int(max(1.0, setting.pools.device - transient_bytes(setting.works))),
        "host_bytes": int(_host_room(setting)),
        "drive_bytes": int(setting.pools.drive),
        "to_device": _link(machine.to_device_bytes_per_s * share, _LINK_LATENCY_NS),
        "from_device": _link(machine.from_device_bytes_per_s * share, _LINK_LATENCY_NS),
        # Without a drive nothing goes there, and its rate does not matter.
        "drive_read": _link(drive.read_bytes_per_s if drive else 1e9, _DRIVE_LATENCY_NS),
        "drive_write": _link(drive.write_bytes_per_s if drive else 1e9, _DRIVE_LATENCY_NS),
        "step_ns_per_parameter": step_bytes(setting.training) / memory * 1e9,
        "step_in_backward": setting.step_in_backward,
        "step_on_host": setting.step_on == "host",
        "replays": setting.replays,
        "foreseen": setting.foreseen,
        "activations": _CHOICES[setting.training.activations],
    }


def _host_room(setting: Setting) -> float:
    """The host memory that the chunks of all devices and the activations of one may have: each
    device moves as many."""
    host = setting.pools.host
    states = min(host, states_bytes(setting.model, setting.training.states))
    return states + (host - states) / setting.machine.devices


def _blocks(works: Sequence[Work]) -> list[dict[str, Any]]:
    blocks = [_block(work) for work in works]
    # The planner chooses for at least one block.
    if not any(work.block.recomputable for work in works):
        blocks.append({"name": "nothing", "recomputable": True})
    return blocks


def _block(work: Work) -> dict[str, Any]:
    return {
        "name": work.block.name,
        "count": work.block.count,
        "parameters": work.block.parameters,
        "trained_parameters": work.block.trained_parameters,
        "forward_ns": round(work.forward_s * 1e9),
        "recompute_ns": round(work.recompute_s * 1e9),
        "attention_ns": round(min(work.attention_s, work.recompute_s) * 1e9),
        "backward_ns": round(work.backward_s * 1e9),
        "input_bytes": round(work.input_bytes),
        "attention_bytes": round(work.attention_bytes),
        "rest_bytes": round(work.rest_bytes),
        "recomputable": work.block.recomputable,
    }


def _link(bytes_per_s: float, latency_ns: int) -> dict[str, Any]:
    return {"bytes_per_second": bytes_per_s, "latency_ns": latency_ns}


def activations_of(reply: dict[str, Any], works: Sequence[Work]) -> tuple[str, ...]:
    """The choice for each block's activations, in the order of forward passes. Blocks that are not
    planned keep theirs, or move them, as the plan says of all that is saved outside of blocks."""
    plan = reply.get("plan", {})
    planned = iter(plan.get("blocks", ()))
    others = _word(plan.get("others", "ACTIVATION_CHOICE_KEEP"))
    words = []
    for work in works:
        for _ in range(work.block.count):
            if work.block.recomputable:
                block: Mapping[str, str] = next(planned, {})
                words.append(_word(block.get("rest") or block.get("input")))
            else:
                words.append(others)
    return tuple(words)


def _word(choice: str | None) -> str:
    if choice == "ACTIVATION_CHOICE_RECOMPUTE":
        return "recompute"
    return "move" if choice and "MOVE" in choice else "keep"
