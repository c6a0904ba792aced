"""`memtide explain` says what was planned for activations, and what a chunk of them held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trace_builder as build
from memtide._activations.explain import TracedActivations
from memtide._activations.plan import (
    ActivationPlan,
    BlockPlan,
    Choice,
    ForcedPlan,
    PredictedIteration,
)
from memtide._activations.profile import ActivationBlock, ActivationProfile, Part, SavedBytes
from memtide._capi import admin
from memtide._trace import model as traces
from memtide._trace.explain import explain
from memtide._trace.model import Trace, of_json
from memtide.errors import InvalidArgument, UsageError

_MIB = 2**20
_KEEP, _HOST, _AGAIN = Choice.KEEP, Choice.MOVE_TO_HOST, Choice.RECOMPUTE
# Two blocks: moments 0 and 1 are their forward passes, 2 and 3 their backward passes.
_PROFILE = ActivationProfile(
    blocks=(
        ActivationBlock(
            "layers.0",
            (
                SavedBytes(Part.INPUT, _MIB, 0, 3, 3),
                SavedBytes(Part.ATTENTION, 2 * _MIB, 0, 3, 3),
                SavedBytes(Part.REST, 4 * _MIB, 0, 3, 3),
            ),
            forward_ns=9_000_000,
            forward_without_attention_ns=5_000_000,
            recomputable=True,
        ),
        ActivationBlock("layers.1", (SavedBytes(Part.REST, 4 * _MIB, 1, 2, 3),)),
    ),
    others=(SavedBytes(Part.REST, _MIB, 1, 2, 2),),
    iteration_moments=5,
)
_PLAN = ActivationPlan(
    blocks=(BlockPlan(_HOST, _KEEP, _AGAIN), BlockPlan(Choice.NONE, Choice.NONE, _HOST)),
    others=_KEEP,
    slots=5,
    allowance_bytes=8 * _MIB,
    predicted=PredictedIteration(120_000_000, 3_000_000, 5_000_000, 7 * _MIB, 9 * _MIB),
    unlimited=PredictedIteration(100_000_000),
    lower_bound_ns=110_000_000,
    forced=(
        ForcedPlan("all kept", None),
        ForcedPlan("all moved", PredictedIteration(elapsed_ns=1_500_000_000)),
    ),
)


def trace_of(
    profile: ActivationProfile | None = _PROFILE,
    plan: ActivationPlan | None = _PLAN,
    moves: int = 4,
) -> Trace:
    """A trace of two iterations; the second one is like the profiled one, and moves activations."""
    uses: dict[int, list[int]] = {
        3: [7 * 4 + build.WRITE],
        4: [8 * 4 + build.WRITE],
        5: [8 * 4 + build.READ],
        6: [7 * 4 + build.READ, 7 * 4 + build.FREE, 8 * 4 + build.FREE],
    }
    phases = ["STEP"] * 3 + ["FORWARD", "FORWARD", "BACKWARD", "BACKWARD", "STEP"]
    activation = {"kind": "CHUNK_KIND_ACTIVATION"}
    document: dict[str, Any] = {
        "chunk_size_bytes": 4 * _MIB,
        "device_slots": 5,
        "chunks": [{"number": 7, **activation}, {"number": 8, **activation}, {"number": 9}],
        "moments": [
            {"phase": f"PHASE_{phase}", "name": "Layer", "uses": uses.get(index, [])}
            for index, phase in enumerate(phases)
        ],
        "iteration_ends": [3, 8],
        "moves": [
            {"from": "TIER_DEVICE", "to": "TIER_HOST", "duration_ns": 4 * _MIB // 2}
            for _ in range(moves)
        ],
    }
    if profile is not None:
        document["activation_profile"] = profile.as_json()
    if plan is not None:
        document["activation_plan"] = plan.as_json()
    return of_json(document)


def explained(**parts: Any) -> list[str]:
    return list(TracedActivations(trace_of(**parts)).explain())


def history(trace: Trace, number: int) -> list[str]:
    return list(explain(trace, number, TracedActivations(trace).held_by))


def test_a_plan_is_explained_with_what_it_predicts_and_what_others_would_do() -> None:
    lines = explained()
    assert lines[:6] == [
        "moments are numbered from the first one of an iteration, such as the one from moment 3 of "
        "the trace",
        "2 blocks: 0 kept, 1 moved, 1 recomputed",
        "8.00 MiB may be kept, beside 5 slots for chunks; predicted: 120 ms (1.20 times as long "
        "as without a limit), of which it stalls 3 ms and recomputes 5 ms; keeps 7.00 MiB, "
        "moves 9.00 MiB",
        "instead, all kept: would not fit",
        "instead, all moved: 1.5 s (15.00 times as long as without a limit), of which it stalls "
        "0 ms and recomputes 0 ms; keeps 0 B, moves 0 B",
        "no plan of this budget takes less than 110 ms",
    ]
    assert len(lines) == 6 + 4 + 1
    assert lines[-1].startswith("what is saved outside of blocks: 1.00 MiB, kept; packed in ")


def test_a_block_is_explained_part_by_part_with_the_costs_of_each_choice() -> None:
    moments = "packed in moment 0 (forward, Layer), unpacked in 3 (backward, Layer)"
    again = "to recompute the block takes"
    move = "to move it to host memory takes"
    assert list(TracedActivations(trace_of()).explain_block("layers.0")) == [
        f"layers.0, input: 1.00 MiB, moved to host memory; {moments}; {move} 0.524 ms there and "
        "0.524 ms back",
        f"layers.0, attention: 2.00 MiB, kept; {moments}; {again} 9 ms; {move} 1.05 ms there and "
        "1.05 ms back",
        # Attention's results are kept, so only the rest is computed again.
        f"layers.0, rest: 4.00 MiB, recomputed; {moments}; {again} 5 ms; {move} 2.1 ms there and "
        "2.1 ms back",
    ]
    (line,) = TracedActivations(trace_of(moves=0)).explain_block("layers.1")
    assert "unpacked in 2 (backward, Layer) to 3; " in line
    assert "nothing has shown that the block can be recomputed exactly" in line
    assert line.endswith("too few transfers to say what a move to host memory takes")


def test_a_chunk_is_explained_by_the_blocks_that_were_packed_before_and_unpacked_then() -> None:
    trace = trace_of()
    assert history(trace, 7)[1] == "by its uses, it held layers.0 (input), layers.0 (attention)"
    # It is freed in the moment in which layers.0 is unpacked, which says nothing.
    assert history(trace, 8)[1] == (
        "by its uses, it held layers.1 (rest), what is saved outside of blocks"
    )
    for unknown in (trace_of(None, None), trace_of(profile=replace(_PROFILE, iteration_moments=9))):
        assert not [line for line in history(unknown, 7) if "it held" in line]
    assert not [line for line in history(trace, 9) if "it held" in line]


def test_a_plan_without_a_search_predicts_nothing() -> None:
    plan = replace(_PLAN, predicted=None)
    assert "without a search" in (explained(plan=plan))[2]
    lines = explained(plan=None)
    assert lines[1] == "2 blocks, and no plan"
    assert "4.00 MiB, not planned" in lines[-2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"profile": None, "plan": None}, "no profile of activations"),
        ({}, "no block 'other'; its blocks are layers.0, layers.1"),
    ],
)
def test_what_cannot_be_explained_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(TracedActivations(trace_of(**fields)).explain_block("other"))


def test_a_stored_trace_has_the_profile_and_the_plan() -> None:
    added = {"activation_profile": _PROFILE.as_json(), "activation_plan": _PLAN.as_json()}
    read = traces.parse(admin.add_to_trace(build.two_layers(), added))
    assert read.activation_profile is not None
    assert ActivationProfile.of_json(read.activation_profile) == _PROFILE
    assert read.activation_plan is not None
    assert ActivationPlan.of_json(read.activation_plan) == _PLAN
    without = replace(read, activation_profile=None, activation_plan=None)
    assert without == traces.parse(build.two_layers())


def test_a_choice_of_a_newer_version_is_an_error_with_words() -> None:
    read = traces.parse(admin.add_to_trace(b"", {"activation_plan": {"others": 99}}))
    with pytest.raises(InvalidArgument, match="activations of this trace cannot be read: 99"):
        TracedActivations(read)


def test_a_plan_for_other_blocks_than_the_profile_s_is_an_error() -> None:
    plan = replace(_PLAN, blocks=_PLAN.blocks[:1])
    with pytest.raises(InvalidArgument, match="plan for 1 blocks, and a profile of 2"):
        TracedActivations(trace_of(plan=plan))
