"""When a plan is searched, with what, and what happens where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memtide._activations import plan_outcome, plan_search, searched_plans
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice, PredictedIteration
from memtide._activations.planning import Profiled
from memtide._activations.profile import ActivationProfile
from memtide._activations.searched_plans import SearchedPlans
from memtide._trace.model import Trace, Transfer, of_json

_MOMENTS = (("forward", "Block"), ("backward", "Block"), ("step", "Adam"))
_OTHER = (("forward", "Other"),)
_PROFILED = Profiled(ActivationProfile(), _MOMENTS, ("shape",))
_FOUND = ActivationPlan(predicted=PredictedIteration(elapsed_ns=7))
_WITHOUT_SEARCH = ActivationPlan(others=Choice.KEEP)


def trace_of(*iterations: tuple[tuple[str, str], ...]) -> Trace:
    """A trace of these iterations, and of one that is not complete."""
    moments = [moment for iteration in iterations for moment in iteration] + [_MOMENTS[0]]
    ends = [sum(map(len, iterations[: i + 1])) for i in range(len(iterations))]
    return of_json(
        {
            "moments": [{"phase": f"PHASE_{p.upper()}", "name": name} for p, name in moments],
            "iteration_ends": ends,
        }
    )


class World:
    """The trace and plan that a planner is given, and the searches and lines that it has made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trace = trace_of(_OTHER, _MOMENTS)
        self.searched: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.found: Callable[[], ActivationPlan] = lambda: _FOUND
        monkeypatch.setattr(searched_plans.traces, "parse", lambda _: self.trace)
        monkeypatch.setattr(searched_plans.plan_search, "search", self._search)
        self.planner = SearchedPlans(
            self, lambda: b"", lambda _: _WITHOUT_SEARCH, self.lines.append
        )

    def divide(self, profile: ActivationProfile) -> ActivationProfile:
        return replace(profile, budget_bytes=5)

    def _search(self, profile: dict[str, Any], *_: Any) -> dict[str, Any]:
        self.searched.append(profile)
        return self.found().as_json()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_plan_comes_one_iteration_after_its_profile(world: World) -> None:
    assert world.planner(_PROFILED) is None
    assert world.searched == []
    assert world.planner(_PROFILED) == _FOUND
    assert world.searched[0]["budget_bytes"] == 5
    assert len(world.lines) == 1
    divided = ActivationProfile(budget_bytes=5, iteration_moments=len(_MOMENTS))
    assert world.planner.latest == (divided, _FOUND)


def test_another_signature_is_another_profile(world: World) -> None:
    assert world.planner(_PROFILED) is None
    assert world.planner(replace(_PROFILED, signature=("other",))) is None
    assert world.searched == []


def test_a_trace_of_another_iteration_is_waited_for_and_then_given_up(world: World) -> None:
    world.trace = trace_of(_MOMENTS, _OTHER)
    assert [world.planner(_PROFILED) for _ in range(3)] == [None, None, None]
    assert world.planner(_PROFILED) == _WITHOUT_SEARCH
    assert "the daemon's trace is not that of the iteration" in world.lines[0]
    assert world.searched == []


def test_the_moments_of_a_trace_have_names_of_64_bytes(world: World) -> None:
    name = "é" * 40
    world.trace = trace_of((("forward", name[:32]),))
    assert world.planner(replace(_PROFILED, moments=(("forward", name),))) is None
    assert world.planner(_PROFILED) == _FOUND


def test_where_no_plan_fits_blocks_are_planned_without_a_search(world: World) -> None:
    world.found = lambda: ActivationPlan(least_budget_bytes=99)
    world.planner(_PROFILED)
    assert world.planner(_PROFILED) == _WITHOUT_SEARCH
    assert "99" in world.lines[0]
    assert world.planner.latest == (ActivationProfile(iteration_moments=3), _WITHOUT_SEARCH)


def transfer(source: str | None, target: str | None, duration_s: float) -> Transfer:
    return Transfer(0, source, target, "demand", 0.0, duration_s, 0, None, 0)


def test_links_are_as_fast_as_the_median_of_what_they_carried() -> None:
    trace = trace_of(_MOMENTS)
    transfers = [transfer("device", "host", s) for s in (0.5, 1.0)]
    transfers += [transfer("host", "device", s) for s in (1.0, 4.0)]
    transfers += [transfer("ssd", "host", 1.0)] * 3  # Too few.
    transfers += [transfer(None, "host", 1.0), transfer("host", None, 0.0)] * 9
    trace = replace(trace, chunk_bytes=2 * 10**9, transfers=tuple(transfers))
    assert plan_search.link_flags(trace) == ["--link-gbps", "2"]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path = folder / "memtide-replay"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("MEMTIDE_REPLAY", str(path))


def test_the_search_is_given_the_profile_the_trace_and_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = 'for last; do :; done; zcat "$last" >&2; echo "{\\"arguments\\": \\"$*\\"}"'
    program(tmp_path, monkeypatch, body)
    done = plan_search.search({"blocks": []}, b"trace", ["--link-gbps", "2"])
    words = done["arguments"].split()
    assert words[:4] == ["--json", "--link-gbps", "2", "--activations"]
    assert not Path(words[4]).exists()  # Nothing is left behind.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo the profile has no blocks >&2; exit 1", "the profile has no blocks"),
        ("exit 3", "ended with status 3"),
        ("echo nothing", "did not print a plan"),
    ],
)
def test_a_search_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    program(tmp_path, monkeypatch, body)
    with pytest.raises(plan_search.SearchFailed, match=message):
        plan_search.search({}, b"")


def test_without_the_program_there_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTIDE_REPLAY", "/nowhere")
    with pytest.raises(plan_search.SearchFailed, match="cannot run"):
        plan_search.search({}, b"")


def test_a_plan_in_one_line() -> None:
    keep, move = Choice.KEEP, Choice.MOVE_TO_HOST
    again = Choice.RECOMPUTE
    plan = ActivationPlan(
        blocks=(
            BlockPlan(keep, keep, keep),
            BlockPlan(move, keep, keep),
            BlockPlan(keep, keep, move),
            BlockPlan(move, again, again),
        ),
        predicted=PredictedIteration(elapsed_ns=104),
        unlimited=PredictedIteration(elapsed_ns=100),
    )
    assert plan_outcome.line_of(plan) == (
        "activations: 4 blocks: 1 kept, 2 moved, 1 recomputed; predicted 1.04x"
    )
    assert json.loads(json.dumps(plan.as_json()))["blocks"][1]["input"] == move.value


def test_only_whole_iterations_of_a_plan_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(plan_outcome.time, "monotonic", lambda: now_s[0])
    outcome = plan_outcome.PlanOutcome()

    def iterate(seconds: float, plan: ActivationPlan | None) -> None:
        now_s[0] += seconds
        outcome.end_iteration(plan)

    iterate(50.0, None)
    assert outcome.as_json() == {}
    iterate(40.0, _FOUND)  # It holds from here on, and its first iteration does not count.
    iterate(30.0, _FOUND)
    assert outcome.as_json()["measured_s"] is None
    iterate(1.0, _FOUND)
    iterate(3.0, _FOUND)
    iterate(2.0, None)
    iterate(90.0, None)
    assert outcome.as_json()["measured_s"] == 2.0
    assert outcome.as_json()["predicted_s"] == pytest.approx(7e-9)
