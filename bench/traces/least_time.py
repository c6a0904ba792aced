"""The least time of a training step on a device that holds `slots` chunks.

In any part of a step, a link brings all chunks that the part uses and that were not there before:
at least as many as Belady's rule would fetch from an empty device, less the `slots` that can have
been there. The part takes that long, or as long as it computes. The best division of the steps into
such parts gives the bound. It knows no transfers from the device, no leases, and no room for
transfers, so that a schedule may take longer; none takes less.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memtide._trace.model import Trace

# The difference between five steps and two: what begins a run costs once.
_MORE_STEPS, _FEWER_STEPS = 5, 2
# The longest part, as the steps repeat.
_STEPS_A_PART = 2


@dataclass(frozen=True)
class Use:
    """A use of a chunk, the time of computing with it, and whether its content ends before the
    chunk is used again, so that the next use fetches nothing."""

    chunk: int
    compute_s: float
    ends: bool = False


def uses_of(trace: Trace, iteration: int) -> list[Use]:
    """The uses of one iteration. Uses of one chunk in a row count as one."""
    begin, end = (0, *trace.iteration_ends)[iteration : iteration + 2]
    uses: list[Use] = []
    last_uses: dict[int, int] = {}
    ended_before_use = []
    for moment, moment_end_s in list(trace.spans())[begin:end]:
        accesses = [number for number, operation in moment.uses if operation in ("read", "write")]
        stalled_s = sum(
            max(0.0, min(moment_end_s, s.start_s + s.duration_s) - max(moment.time_s, s.start_s))
            for s in trace.stalls
        )
        compute_s = max(0.0, moment_end_s - moment.time_s - stalled_s)
        for number, operation in moment.uses:
            if operation == "free" and number in last_uses:
                uses[last_uses[number]] = replace(uses[last_uses[number]], ends=True)
            elif operation == "free":
                ended_before_use.append(number)
            elif operation in ("read", "write"):
                if not uses or uses[-1].chunk != number or uses[-1].ends:
                    uses.append(Use(number, 0.0))
                last_uses[number] = len(uses) - 1
                uses[-1] = replace(
                    uses[-1], compute_s=uses[-1].compute_s + compute_s / len(accesses)
                )
        if not accesses and uses:
            uses[-1] = replace(uses[-1], compute_s=uses[-1].compute_s + compute_s)
    # A chunk that is freed before its first use has its content from the iteration before.
    for number in ended_before_use:
        if number in last_uses:
            uses[last_uses[number]] = replace(uses[last_uses[number]], ends=True)
    return uses


def least_step_s(uses: Sequence[Use], slots: int, transfer_s: float) -> float:
    """Seconds, for steps that repeat. REQUIRES: there is a use."""
    more = _least_s(uses, _MORE_STEPS, slots, transfer_s)
    fewer = _least_s(uses, _FEWER_STEPS, slots, transfer_s)
    return (more - fewer) / (_MORE_STEPS - _FEWER_STEPS)


def _least_s(uses: Sequence[Use], steps: int, slots: int, transfer_s: float) -> float:
    following, is_new = _order(uses, steps)
    count = len(following)
    least_s = [0.0] * (count + 1)
    for begin in range(count):
        fetches, compute_s = 0, 0.0
        there: dict[int, int] = {}
        farthest: list[tuple[int, int]] = []
        for place in range(begin, min(count, begin + _STEPS_A_PART * len(uses))):
            use = uses[place % len(uses)]
            if use.chunk not in there:
                fetches += not is_new[place]
                while len(there) >= slots:
                    negative, victim = heapq.heappop(farthest)
                    if there.get(victim) == -negative:
                        del there[victim]
            there[use.chunk] = following[place]
            heapq.heappush(farthest, (-following[place], use.chunk))
            compute_s += use.compute_s
            part_s = max(compute_s, transfer_s * max(0, fetches - slots))
            least_s[place + 1] = max(least_s[place + 1], least_s[begin] + part_s)
    return least_s[count]


def _order(uses: Sequence[Use], steps: int) -> tuple[list[int], list[bool]]:
    """By place: where the content is used next, and whether the use makes a new content."""
    count = len(uses) * steps
    following = [0] * count
    is_new = [False] * count
    next_place: dict[int, int] = {}
    for place in reversed(range(count)):
        use = uses[place % len(uses)]
        after = next_place.get(use.chunk, count)
        if use.ends and after < count:
            is_new[after] = True
        # A content without a next use goes first.
        following[place] = count + place if use.ends else after
        next_place[use.chunk] = place
    ending = {use.chunk: use.ends for use in uses}
    for chunk, place in next_place.items():
        is_new[place] = ending[chunk]
    return following, is_new
