"""The iterations that lead to a plan of activations, and what the plan says while it holds.

The first iteration finds the blocks. Once something had to be moved in one, the next iteration
rehearses the blocks, and from the one after it all iterations are recorded. One in which nothing is
recomputed gives a profile, of which the planner makes a plan. The plan holds until the script's
shapes change (shape_plans.py). Where all fits, nothing is rehearsed, recorded or planned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from memtide._activations import plan_without_search
from memtide._activations.block_calls import BlockCalls, Call
from memtide._activations.blocks import Block, BlockFinder
from memtide._activations.dear_results import DEAR_NODES
from memtide._activations.kept_storages import KeptStorage, KeptStorages
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.plan_without_search import Moves
from memtide._activations.profile import ActivationProfile, Part
from memtide._activations.recompute import Mode, Recompute, Replacer
from memtide._activations.recording import MomentName, Recording
from memtide._activations.rehearsal import Rehearsal, Rehearsed
from memtide._activations.script_choices import Choices
from memtide._activations.shape_plans import ShapePlans, Signature
from memtide.errors import InvalidArgument


@dataclass(frozen=True)
class Profiled:
    """An iteration of which a plan can be made."""

    profile: ActivationProfile
    moments: tuple[MomentName, ...]  # To whose numbers the profile refers.
    signature: Signature


# Makes a plan of a profile. None: not now; it is asked again after the next iteration.
Planner = Callable[[Profiled], ActivationPlan | None]
# Makes a planner that searches, and has another one for where it finds nothing.
Search = Callable[[Planner], Planner]


class Planning:
    """The plan of one process. Its iterations end in one thread; blocks may run in any."""

    def __init__(
        self,
        attributes: Callable[[], Replacer],
        storages: KeptStorages,
        moments: Sequence[MomentName],
        leave: Callable[[], None],
        make_room: Callable[[int], None],
        chosen: Choices,
        search: Search | None = None,
    ) -> None:
        """`moments`: those reported in this iteration, to which others are added. `leave` moves
        what is to leave, and `make_room` moves until there is room for a number of bytes, both as
        far as that is possible now. `search`: None: plans are made without one."""
        self._rehearsal = Rehearsal(attributes(), make_room)
        self._chosen = chosen
        self._finder: BlockFinder | None = None
        self._blocks: list[Block] = []
        self._wanted: set[nn.Module] = set()  # Blocks that the script wants to be recomputed.
        self._rehearsed: dict[nn.Module, Rehearsed] | None = None
        self._is_rehearsing = False
        self._recompute = Recompute(attributes(), lambda: self._calls.note_recomputation())
        self._calls = BlockCalls(attributes(), self._recompute, self._begin_call, self._end_call)
        self._storages = storages
        self._moments = moments
        self._leave = leave
        self._recording: Recording | None = None
        self._moves = Moves(0, 0.0)  # The iteration that ended last made these.
        self._plans = ShapePlans()
        self._signature: Signature = ()  # It is the last iteration's.
        self._plan: ActivationPlan | None = None
        without_search: Planner = self._plan_without_search
        self.planner = without_search if search is None else search(without_search)
        self.profiled: Profiled | None = None  # The latest.
        self.is_short = False  # Whether not all that autograd saved has fitted, in any iteration.
        self.recomputed = 0  # Blocks.
        self.reasons: dict[str, int] = {}  # Why blocks are not recomputed, with their numbers.

    @property
    def blocks(self) -> int:
        """How many blocks were found."""
        return len(self._blocks)

    @property
    def plan(self) -> ActivationPlan | None:
        """The plan that holds now."""
        return self._plan

    @property
    def is_recording(self) -> bool:
        """Whether `note` is to be called for what autograd saves."""
        return self._recording is not None

    def note(self, entry: KeptStorage, tensor: torch.Tensor) -> None:
        """Autograd saves a tensor over a storage. REQUIRES: `is_recording`."""
        recording, call = self._recording, self._calls.running
        if recording is None:
            return
        record = entry.record
        part = Part.REST if call is None else _part_of(tensor, call)
        if record is None or record.recording is not recording:
            record = entry.record = recording.pack(entry.size_bytes)
        elif part is not Part.INPUT or record.part is Part.INPUT:
            return
        if record is None:
            return
        if call is None:
            self._leave()
            if self._plan is not None:
                self._storages.choose(entry, self._plan.others)
            return
        self._assign(entry, call, part)
        if part is Part.ATTENTION and call.latest is not None:
            self._assign(call.latest, call, part)
        # A kernel saves the logarithms of its sums before its result, and does not train them.
        call.latest = entry if tensor.is_floating_point() and not tensor.requires_grad else None

    def _assign(self, entry: KeptStorage, call: Call, part: Part) -> None:
        if entry.record is not None:
            entry.record.belong_to(call.block, part, call.micro_batch)
        if self._plan is not None:
            self._storages.choose(entry, self._plan.blocks[call.block].of(part))

    def open(self) -> None:
        """Begins, before an iteration's first forward pass."""
        self._finder = BlockFinder()
        self._finder.open()

    def apply(self, plan: ActivationPlan, signature: Signature) -> None:
        """Does what the plan says in iterations with the signature that was profiled for it, from
        the next block on. InvalidArgument: it is for other blocks. REQUIRES: the thread that ends
        iterations calls this."""
        if len(plan.blocks) != self.blocks:
            raise InvalidArgument(
                f"a plan of {len(plan.blocks)} blocks, and the script has {self.blocks}"
            )
        self._plans.remember(signature, plan)
        if signature == self._signature:
            self._apply(plan)

    def end_iteration(self, moves: Moves) -> None:
        """An iteration has ended that moved as much. REQUIRES: no block runs."""
        if self._finder is not None:
            self._note_blocks(self._finder.close())
            self._finder = None
        self._moves = moves
        self.is_short = self.is_short or moves.bytes > 0
        if not self.is_short and not self._wanted:
            return
        if self._rehearsed is None and self._begin_rehearsal():
            return
        if not self.is_short:
            return
        recording, self._recording = self._recording, Recording(self._moments)
        if recording is None:
            self._calls.watch([block.module for block in self._blocks])
        else:
            signature = self._calls.end_iteration()
            # Another optimizer may step, too. A plan is of blocks: without any, tensors leave.
            if recording.storages and self._blocks:
                self._signature = signature
                self._choose_plan(recording)

    def close(self) -> None:
        """Lets all blocks run as they are."""
        if self._finder is not None:
            self._finder.close()
        if self._is_rehearsing:
            self._rehearsal.close()
        self._recording = None
        self._calls.close()
        self._recompute.close()

    def _note_blocks(self, found: Sequence[Block]) -> None:
        """Blocks that the script wants to be recomputed need not be repeated."""
        wanted = self._chosen.blocks([block.module for block in found])
        self._wanted = set(wanted)
        known = {block.module: block for block in found}
        inner = {part for module in wanted for part in module.modules()}
        others = [
            block
            for block in found
            if block.module not in inner and self._wanted.isdisjoint(block.module.modules())
        ]
        self._blocks = [known.get(module) or Block(module, "", 1, 0.0, 0) for module in wanted]
        self._blocks += others

    def _begin_rehearsal(self) -> bool:
        """Begins the rehearsal, or ends it. Returns whether blocks are rehearsed now."""
        if self._is_rehearsing:
            if self._rehearsal.is_idle:
                return True
            self._is_rehearsing = False
            self._rehearsed = self._rehearsal.close()
            for each in self._rehearsed.values():
                if each.reason is not None:
                    self.reasons[each.reason] = self.reasons.get(each.reason, 0) + 1
            self._apply(self._plan)
            return False
        opened = [block.module for block in self._blocks]
        if not self._moves.bytes:
            opened = [module for module in opened if module in self._wanted]
        if not opened:
            self._rehearsed = {}
            return False
        self._is_rehearsing = True
        self._rehearsal.open(opened)
        return True

    def _choose_plan(self, recording: Recording) -> None:
        """After a recorded iteration."""
        plan = self._plans.plan_of(self._signature)
        if plan is None and recording.is_whole:
            known = [self._known_of(block) for block in self._blocks]
            profile = recording.profile([block.name for block in self._blocks], known)
            self.profiled = Profiled(profile, tuple(self._moments), self._signature)
            plan = self.planner(self.profiled)
            if plan is not None:
                self.apply(plan, self._signature)
        elif plan is None and self._wanted and self.is_short:
            self.apply(self._plan_without_search(None), self._signature)
        elif plan is None:
            self._plans.miss(self._signature)
        elif plan is not self._plan:
            self._apply(plan)

    def _plan_without_search(self, _profiled: Profiled | None) -> ActivationPlan:
        modules = [block.module for block in self._blocks]
        return plan_without_search.plan(modules, self._rehearsed or {}, self._moves)

    def _apply(self, plan: ActivationPlan | None) -> None:
        modes = {}
        for block, each in zip(self._blocks, plan.blocks if plan is not None else (), strict=False):
            mode = _mode_of(each)
            if mode is not None and self._known_of(block).reason is None:
                modes[block.module] = mode
        for module in self._wanted:
            known = (self._rehearsed or {}).get(module, Rehearsed())
            if known.reason is None:
                modes[module] = plan_without_search.mode_of(known)
        self.recomputed = len(modes)
        reads = {block: each.reads for block, each in (self._rehearsed or {}).items()}
        self._recompute.plan(modes, reads)
        self._plan = plan

    def _known_of(self, block: Block) -> Rehearsed:
        return (self._rehearsed or {}).get(block.module, Rehearsed())

    def _begin_call(self, call: Call, shapes: Hashable) -> None:
        if call.is_first:
            self._begin_pass(shapes)
        self._leave()

    def _end_call(self, call: Call) -> None:
        if call.is_recomputed and self._recording is not None:
            self._recording.is_whole = False
        self._leave()

    def _begin_pass(self, shapes: Hashable) -> None:
        """The first forward pass of an iteration comes to its first block."""
        if self._plans.wants_profile(shapes):
            self._apply(None)  # To record all that is saved.
        elif self._signature[:1] != (shapes,):
            plan = self._plans.plan_beginning(shapes)
            if plan is not None and plan is not self._plan:
                self._apply(plan)


def _mode_of(plan: BlockPlan) -> Mode | None:
    if plan.rest is not Choice.RECOMPUTE:
        return None
    keeps_attention = plan.attention not in (Choice.NONE, Choice.RECOMPUTE)
    return Mode.REST if keeps_attention else Mode.ALL_BUT_INPUT


def _part_of(tensor: torch.Tensor, call: Call) -> Part:
    if tensor.untyped_storage()._cdata in call.inputs:
        return Part.INPUT
    if call.is_recomputed:
        return Part.ATTENTION  # Nothing else reaches these hooks.
    node = tensor.grad_fn
    is_result = node is not None and node.name() in DEAR_NODES
    return Part.ATTENTION if is_result else Part.REST
