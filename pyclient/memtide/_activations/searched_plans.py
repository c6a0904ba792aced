"""Plans that a search finds: what `Planning` asks, once for each signature of iterations.

An iteration's trace is whole only after the next one has begun, so a plan comes one iteration after
its profile. Where the search finds none, or cannot run, blocks are planned without it
(plan_without_search.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
# The bytes of a moment's name that the daemon records.
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
        # The latest plan that was made, and the profile that it was made of.
        self.latest: tuple[ActivationProfile, ActivationPlan] | None = None

    def __call__(self, profiled: Profiled) -> ActivationPlan | None:
        """The plan for iterations as this one; None: it comes after the next iteration."""
        pending = self._pending
        if pending is None or pending.signature != profiled.signature:
            self._pending, self._tries = profiled, 0
            return None
        self._tries += 1
        try:
            made = self._search(pending)
        except MemtideError as error:
            self._say(f"activations are planned without a search: {error}")
            without_search = self._without_search(pending)
            made = None if without_search is None else (_profile_of(pending), without_search)
        if made is None:
            return None
        self._pending, self.latest = None, made
        self._say(plan_outcome.line_of(made[1]))
        return made[1]

    def _search(self, pending: Profiled) -> tuple[ActivationProfile, ActivationPlan] | None:
        serialized = self._fetch_trace()
        trace = traces.parse(serialized)
        if _last_iteration_of(trace) != tuple(map(_as_recorded, pending.moments)):
            if self._tries < _MOST_TRIES:
                return None
            raise plan_search.SearchFailed("the daemon's trace is not that of the iteration")
        profile = self._division.divide(_profile_of(pending))
        found = plan_search.search(profile.as_json(), serialized, plan_search.link_flags(trace))
        plan = ActivationPlan.of_json(found)
        if plan.least_budget_bytes:
            raise plan_search.SearchFailed(
                f"no plan fits; the least would be {plan.least_budget_bytes} bytes"
            )
        return profile, plan


def _profile_of(profiled: Profiled) -> ActivationProfile:
    """The profile, with what finds its iteration in a trace."""
    return replace(profiled.profile, iteration_moments=len(profiled.moments))


def _last_iteration_of(trace: Trace) -> tuple[MomentName, ...]:
    """The moments of the last complete iteration."""
    ends = (0, 0, *trace.iteration_ends)[-2:]
    return tuple((moment.phase, moment.name) for moment in trace.moments[ends[0] : ends[1]])


def _as_recorded(moment: MomentName) -> MomentName:
    phase, name = moment
    return phase, name.encode()[:_NAME_BYTES].decode(errors="ignore")
