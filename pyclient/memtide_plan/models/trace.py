"""A model from the trace of a run (docs/traces.md).

A trace knows bytes of chunks and seconds, and neither elements nor tokens. Parameters are counted
in the type that Options.compute_type names (float32 without one), up to the room that is left in
chunks. An iteration has the tokens that Options.batch and Options.sequence say.

The times of its passes are those of the processor that recorded it, and are used for no other one:
there, passes take what operations do, two for each parameter and token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import States
from memtide._trace import files
from memtide._trace import model as traces
from memtide.errors import InvalidArgument, UsageError

from memtide_plan.models.described import DEFAULTS, Described, Options, element_bytes
from memtide_plan.models.traced_blocks import TracedBlock, last_iteration

_PARTS = ("INPUT", "ATTENTION", "REST")


@dataclass(frozen=True)
class _Profiled:
    """A block in the profile of activations."""

    saved: tuple[int, int, int] = (0, 0, 0)  # Bytes of an iteration, as in _PARTS.
    recomputable: bool = False


def from_trace(path: Path, options: Options = DEFAULTS) -> Described:
    """The model of a trace's last whole iteration. InvalidArgument: it is no trace, or has none."""
    try:
        trace = traces.parse(files.load(path))
    except UsageError as error:
        raise InvalidArgument(str(error)) from error
    if not trace.iteration_ends:
        raise InvalidArgument(
            f"'{path}' has no whole iteration: record a run of more steps (memtide run --trace)"
        )
    if options.batch is None or options.sequence is None:
        raise InvalidArgument(
            f"'{path}' does not know how many tokens a step of its run has read: say so with "
            "--batch and --sequence"
        )
    profile = trace.activation_profile or {}
    profiled = {block.get("name", ""): _profiled(block) for block in profile.get("blocks", ())}
    iteration = last_iteration(trace, list(profiled))
    if not iteration.parameter_bytes:
        raise InvalidArgument(f"'{path}' has no forward pass that reads parameters in chunks")
    type_name = options.compute_type or "float32"
    size_bytes = element_bytes(type_name)
    counted = _Counted(
        element_bytes=size_bytes,
        tokens=options.batch * options.sequence,
        trained_share=min(1.0, iteration.gradient_bytes / iteration.parameter_bytes),
        with_times=options.computes_here,
    )
    # A block that saves nothing may be computed again: the planner has no question without such a
    # block.
    unknown = _Profiled(recomputable=not profile)
    blocks = [
        _block(block, profiled.get(block.name, unknown), counted) for block in iteration.blocks
    ]
    blocks[-1] = _with_others(blocks[-1], profile, counted)
    return Described(
        model=Model(name=path.name.removesuffix(files.RAW_SUFFIX), blocks=tuple(_joined(blocks))),
        states=States(
            weight=size_bytes,
            gradient=size_bytes,
            optimizer=size_bytes * iteration.optimizer_bytes / max(1, iteration.gradient_bytes),
        ),
        batch=options.batch,
        sequence=options.sequence,
        compute_type=type_name,
        notes=tuple(_notes(options, profile, type_name)),
    )


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """In what the numbers of an iteration are counted."""

    element_bytes: int
    tokens: int
    trained_share: float  # Parameters that have gradients.
    with_times: bool


def _profiled(block: Mapping[str, Any]) -> _Profiled:
    return _Profiled(_by_part(block.get("saved", ())), bool(block.get("recomputable", False)))


def _by_part(saved: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    sizes = dict.fromkeys(_PARTS, 0)
    for entry in saved:
        part = str(entry.get("part", "")).removeprefix("ACTIVATION_PART_")
        sizes[part if part in sizes else "REST"] += int(entry.get("size_bytes", 0))
    return sizes["INPUT"], sizes["ATTENTION"], sizes["REST"]


def _block(block: TracedBlock, profiled: _Profiled, counted: _Counted) -> Block:
    parameters = round(block.parameter_bytes / counted.element_bytes)
    tokens = counted.tokens
    into, attention, rest = (size / tokens for size in profiled.saved)
    return Block(
        name=block.name,
        parameters=parameters,
        trained_parameters=round(parameters * counted.trained_share),
        flop_per_token=2 * parameters,
        input_bytes_per_token=into,
        attention_bytes_per_token=attention,
        rest_bytes_per_token=rest,
        recomputable=profiled.recomputable,
        forward_s_per_token=block.forward_s / tokens if counted.with_times else None,
        backward_s_per_token=block.backward_s / tokens if counted.with_times else None,
    )


def _with_others(last: Block, profile: Mapping[str, Any], counted: _Counted) -> Block:
    """The last block, with what is saved outside of all."""
    others = sum(_by_part(profile.get("others", ())))
    rest = last.rest_bytes_per_token + others / counted.tokens
    return replace(last, rest_bytes_per_token=rest)


def _joined(blocks: Sequence[Block]) -> Iterator[Block]:
    """Blocks in a row that save equal bytes are one, with the means of what was measured."""

    def saves(block: Block) -> Any:
        stem = block.name.rstrip("0123456789")
        return stem, block.recomputable, block.saved_bytes_per_token(), block.input_bytes_per_token

    for (stem, *_), row in groupby(blocks, saves):
        alike = list(row)
        if len(alike) == 1:
            yield alike[0]
            continue
        one, count = alike[0], len(alike)
        yield Block(
            name=stem.rstrip("."),
            count=count,
            parameters=round(sum(block.parameters for block in alike) / count),
            trained_parameters=round(sum(block.trained_parameters for block in alike) / count),
            flop_per_token=sum(block.flop_per_token for block in alike) / count,
            input_bytes_per_token=one.input_bytes_per_token,
            attention_bytes_per_token=one.attention_bytes_per_token,
            rest_bytes_per_token=one.rest_bytes_per_token,
            recomputable=one.recomputable,
            forward_s_per_token=_mean(block.forward_s_per_token for block in alike),
            backward_s_per_token=_mean(block.backward_s_per_token for block in alike),
        )


def _mean(times: Iterable[float | None]) -> float | None:
    measured = [each for each in times if each is not None]
    return fmean(measured) if measured else None


def _notes(options: Options, profile: Mapping[str, Any], type_name: str) -> Iterator[str]:
    yield f"Parameters are counted from chunks, as {type_name}."
    if options.computes_here:
        yield "Passes take what they took in the trace, by token: it has to be of this machine."
    else:
        yield (
            "Passes take what two operations for each parameter and token take on the machine that "
            "is asked about, without those of attention; the trace's own times are not used."
        )
    if not profile:
        yield (
            "The trace has no profile of activations, which a run writes whose budget has no room "
            "for all of them: what blocks save for their backward passes is not counted, so that "
            "more memory is needed than the answer says."
        )
