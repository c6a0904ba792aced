"""A trace's activations, in words: the tensors that each block saves, the plan's choices for them,
the costs, and the blocks that a chunk of activations held.

Moments are numbered from the first one of an iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from memtide._activations import plan_outcome, plan_search
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice, PredictedIteration
from memtide._activations.profile import ActivationBlock, ActivationProfile, Part, SavedBytes
from memtide._trace.model import Moment, Trace
from memtide._util.sizes import format_size
from memtide.errors import InvalidArgument, UsageError

_DONE = {
    Choice.NONE: "not planned",
    Choice.KEEP: "kept",
    Choice.MOVE_TO_HOST: "moved to host memory",
    Choice.MOVE_TO_SSD: "moved to SSD",
    Choice.RECOMPUTE: "recomputed",
}
_OTHERS = "what is saved outside of blocks"


class TracedActivations:
    """The profile and the plan in a trace, beside the iteration that is like the profiled one."""

    def __init__(self, trace: Trace) -> None:
        """InvalidArgument: what the trace has of activations cannot be read."""
        profile, plan = trace.activation_profile, trace.activation_plan
        try:
            self._profile = None if profile is None else ActivationProfile.of_json(profile)
            self._plan = ActivationPlan() if plan is None else ActivationPlan.of_json(plan)
        except ValueError as error:  # A number that is none of an enum's.
            raise InvalidArgument(
                f"the activations of this trace cannot be read: {error}"
            ) from error
        blocks = len(self._profile.blocks) if self._profile is not None else 0
        if self._plan.blocks and len(self._plan.blocks) != blocks:
            raise InvalidArgument(
                f"the trace has a plan for {len(self._plan.blocks)} blocks, and a profile of "
                f"{blocks}"
            )
        self._chunk_kinds = {number: chunk.kind for number, chunk in trace.chunks.items()}
        self._on_device = trace.slots.get("device", 0) > 0
        self._link_gbps = plan_search.link_gbps(trace)
        wanted = self._profile.iteration_moments if self._profile is not None else 0
        self._iteration = _iteration(trace, wanted)

    def explain(self) -> Iterator[str]:
        """The plan and what it predicts, then a line for each part of each block. UsageError: the
        trace has no profile of activations."""
        profile = self._known_profile()
        yield from self._plan_in_words()
        for block, plan in self._planned_blocks():
            yield from self._block_in_words(block, plan)
        for saved in profile.others:
            yield self._in_words(_OTHERS, saved, self._plan.others, "")

    def explain_block(self, name: str) -> Iterator[str]:
        """The lines of the blocks with this name. UsageError: there are none."""
        profile = self._known_profile()
        found = [(block, plan) for block, plan in self._planned_blocks() if block.name == name]
        if not found:
            names = ", ".join(dict.fromkeys(block.name for block in profile.blocks)) or "none"
            raise UsageError(f"the trace has no block {name!r}; its blocks are {names}")
        for block, plan in found:
            yield from self._block_in_words(block, plan)

    def held_by(self, number: int) -> str | None:
        """The activations that a chunk held, in words: the parts that were packed before it was
        written, and unpacked when it was read, in the latest iteration that is like the profiled
        one. None: it held none, or they are not known."""
        if self._chunk_kinds.get(number) != "activation":
            return None
        written, read = (
            [at for at, moment in enumerate(self._iteration) if (number, operation) in moment.uses]
            for operation in ("write", "read")
        )
        names = dict.fromkeys(
            name
            for name, saved, choice in self._parts()
            if choice is not Choice.RECOMPUTE  # Parts to keep leave where there is no room.
            and any(saved.packed_moment <= at <= saved.first_unpacked_moment for at in written)
            and any(saved.first_unpacked_moment <= at <= saved.last_unpacked_moment for at in read)
        )
        return f"by its uses, it held {', '.join(names)}" if names else None

    def _known_profile(self) -> ActivationProfile:
        if self._profile is None:
            raise UsageError(
                "the trace has no profile of activations: `memtide run --trace` adds one where "
                "activations did not fit a budget"
            )
        return self._profile

    def _planned_blocks(self) -> Iterator[tuple[ActivationBlock, BlockPlan]]:
        blocks = self._profile.blocks if self._profile is not None else ()
        plans = self._plan.blocks or (BlockPlan(),) * len(blocks)
        return zip(blocks, plans, strict=True)

    def _parts(self) -> Iterator[tuple[str, SavedBytes, Choice]]:
        for block, plan in self._planned_blocks():
            for saved in block.saved:
                yield f"{block.name} ({saved.part.name.lower()})", saved, plan.of(saved.part)
        for saved in self._profile.others if self._profile is not None else ():
            yield _OTHERS, saved, self._plan.others

    def _plan_in_words(self) -> Iterator[str]:
        iteration, plan = self._iteration, self._plan
        at = f", such as the one from moment {iteration[0].index} of the trace" if iteration else ""
        yield f"moments are numbered from the first one of an iteration{at}"
        if not plan.blocks:
            yield f"{len(self._known_profile().blocks)} blocks, and no plan"
            return
        counts = ", ".join(f"{n} {what}" for what, n in plan_outcome.summary_of(plan).items())
        yield f"{len(plan.blocks)} blocks: {counts}"
        if plan.predicted is None:
            yield "this plan was made without a search, and predicts nothing"
            return
        yield (
            f"{format_size(plan.allowance_bytes)} may be kept, beside {plan.slots} slots for "
            f"chunks; predicted: {_iteration_in_words(plan.predicted, plan.unlimited)}"
        )
        for forced in plan.forced:
            text = "would not fit"
            if forced.predicted is not None:
                text = _iteration_in_words(forced.predicted, plan.unlimited)
            yield f"instead, {forced.name}: {text}"
        yield f"no plan of this budget takes less than {_duration(plan.lower_bound_ns)}"

    def _block_in_words(self, block: ActivationBlock, plan: BlockPlan) -> Iterator[str]:
        for saved in block.saved:
            what = f"{block.name}, {saved.part.name.lower()}"
            recompute = _recompute_cost(block, saved.part, plan)
            yield self._in_words(what, saved, plan.of(saved.part), recompute)

    def _in_words(self, what: str, saved: SavedBytes, choice: Choice, recompute: str) -> str:
        first, last = saved.first_unpacked_moment, saved.last_unpacked_moment
        until = f" to {last}" if last > first else ""
        costs = "; ".join(filter(None, (recompute, self._move_cost(saved.size_bytes))))
        return (
            f"{what}: {format_size(saved.size_bytes)}, {_DONE[choice]}; "
            f"packed in moment {self._moment(saved.packed_moment)}, "
            f"unpacked in {self._moment(first)}{until}; {costs}"
        )

    def _move_cost(self, size_bytes: int) -> str:
        """The time of the links there and back, if the trace shows how fast they are."""
        where, there, back = "SSD", "--ssd-write-gbps", "--ssd-read-gbps"
        if self._on_device:
            where, there, back = "host memory", "--link-gbps", "--link-gbps"
        speeds: Mapping[str, float] = self._link_gbps
        if there not in speeds or back not in speeds:
            return f"the trace has too few transfers to say what a move to {where} takes"
        out, home = (_duration(round(size_bytes / speeds[link])) for link in (there, back))
        return f"to move it to {where} takes {out} there and {home} back"

    def _moment(self, number: int) -> str:
        if number >= len(self._iteration):
            return str(number)
        moment = self._iteration[number]
        return f"{number} ({moment.phase}, {moment.name})"


def _iteration(trace: Trace, moments: int) -> Sequence[Moment]:
    """The last complete iteration with as many moments, or with any number if that is 0."""
    for start, end in reversed(list(pairwise((0, *trace.iteration_ends)))):
        if start < end <= len(trace.moments) and moments in (0, end - start):
            return trace.moments[start:end]
    return ()


def _iteration_in_words(predicted: PredictedIteration, unlimited: PredictedIteration | None) -> str:
    ratio = ""
    if unlimited is not None and unlimited.elapsed_ns:
        ratio = (
            f" ({predicted.elapsed_ns / unlimited.elapsed_ns:.2f} times as long as without a limit)"
        )
    return (
        f"{_duration(predicted.elapsed_ns)}{ratio}, of which it stalls "
        f"{_duration(predicted.stalled_ns)} and recomputes {_duration(predicted.recomputed_ns)}; "
        f"keeps {format_size(predicted.most_kept_bytes)}, "
        f"moves {format_size(predicted.moved_bytes)}"
    )


def _recompute_cost(block: ActivationBlock, part: Part, plan: BlockPlan) -> str:
    """The time of the block's forward pass, with which all its results are recomputed."""
    if part is Part.INPUT:
        return ""
    if not block.recomputable:
        return "nothing has shown that the block can be recomputed exactly"
    keeps_attention = plan.attention not in (Choice.NONE, Choice.RECOMPUTE)
    took_ns = block.forward_ns
    if keeps_attention and part is Part.REST:
        took_ns = block.forward_without_attention_ns or took_ns
    return f"to recompute the block takes {_duration(took_ns)}"


def _duration(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
