"""Plans that a search finds: what `Planning` asks, once for each signature of iterations.

An iteration's trace is whole only after the next one has begun, so a plan comes one iteration after
its profile. Where the search finds none, or cannot run, blocks are planned without it
(block_plan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from memtide._activations import plan_outcome, plan_search
from memtide._activations.plan import ActivationPlan
from memtide._activations.planning import Planner, Profiled
from memtide._activations.profile import ActivationProfile
from memtide._activations.recording import MomentName
from memtide._trace import model as traces
from memtide._trace.model import Trace
from memtide.errors import MemtideError

# The number of iterations that are waited for a trace which is that of the profile.
_MOST_TRIES = 3
# What the daemon records of a moment's name.
_NAME_BYTES = 64


class Division(Protocol):
    """The memory that a plan divides: memtide._activations.budget.Budget."""

    def divide(self, profile: ActivationProfile) -> ActivationProfile:
        """The profile, with what chunks and kept activations have together."""


class SearchedPlans:
    """The planner of one process. Used by the thread that ends iterations."""

    def __init__(
        self,
        division: Division,
        fetch_trace: Callable[[], bytes],
        without_search: Planner,
        say: Callable[[str], None],
    ) -> None:
        """`fetch_trace` returns the job's serialized trace. `say` is called with each plan, in a
        line, and with the reason where the search has found none."""
        self._division = division
        self._fetch_trace = fetch_trace
        self._without_search = without_search
        self._say = say
        self._pending: Profiled | None = None
        self._tries = 0

    def __call__(self, profiled: Profiled) -> ActivationPlan | None:
        """The plan for iterations as this one; None: it comes after the next iteration."""
        pending = self._pending
        if pending is None or pending.signature != profiled.signature:
            self._pending, self._tries = profiled, 0
            return None
        self._tries += 1
        try:
            plan = self._search(pending)
        except MemtideError as error:
            self._say(f"activations are planned without a search: {error}")
            plan = self._without_search(pending)
        if plan is not None:
            self._pending = None
            self._say(plan_outcome.line_of(plan))
        return plan

    def _search(self, pending: Profiled) -> ActivationPlan | None:
        serialized = self._fetch_trace()
        trace = traces.parse(serialized)
        if _last_iteration_of(trace) != tuple(map(_as_recorded, pending.moments)):
            if self._tries < _MOST_TRIES:
                return None
            raise plan_search.SearchFailed("the daemon's trace is not that of the iteration")
        profile = self._division.divide(pending.profile)
        found = plan_search.search(profile.as_json(), serialized, plan_search.link_flags(trace))
        plan = ActivationPlan.of_json(found)
        if plan.least_budget_bytes:
            raise plan_search.SearchFailed(
                f"no plan fits; the least would be {plan.least_budget_bytes} bytes"
            )
        return plan


def _last_iteration_of(trace: Trace) -> tuple[MomentName, ...]:
    """The moments of the last complete iteration."""
    ends = (0, 0, *trace.iteration_ends)[-2:]
    return tuple((moment.phase, moment.name) for moment in trace.moments[ends[0] : ends[1]])


def _as_recorded(moment: MomentName) -> MomentName:
    phase, name = moment
    return phase, name.encode()[:_NAME_BYTES].decode(errors="ignore")
