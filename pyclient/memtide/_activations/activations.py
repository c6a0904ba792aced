"""Activations: decides for each tensor that autograd saves whether it stays, and moves it if not.

A tensor that a plan moves leaves at the end of the block that has saved it, or as soon as nothing
else uses it. Beyond that, and until there is a plan, the tensor that was saved first leaves first,
as soon as more is kept than the budget allows: it is needed last in backward. To move a tensor is
to copy its storage into an activation chunk at the fastest tier and to drop the original. From
there the daemon moves it like any other chunk, and brings it back when backward comes near.
Autograd gets back a view of the chunk.

These are saved as they are: tensors in chunks (parameters, and views of them), the script's own
leaves, small ones, those on other devices, autocast's copies of weights (autocast_copies.py), and
those of other classes than torch's own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from memtide._activations import script_choices
from memtide._activations.default_hooks import DefaultHooks
from memtide._activations.kept_storages import KeptStorages
from memtide._activations.plan import Choice
from memtide._activations.plan_outcome import PlanOutcome
from memtide._activations.plan_without_search import Moves
from memtide._activations.planning import Planning, Search
from memtide._activations.recompute import Replacer
from memtide._activations.recording import MomentName
from memtide._activations.saved_tensor import Reference, SavedTensor
from memtide._activations.script_choices import Choices
from memtide._capi.client import Home
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.storage_copies import copy_bytes
from memtide._memory.tensor_parts import is_plain
from memtide._util.program_capture import is_captured
from memtide._util.step_phase import StepPhase
from memtide.errors import ResourceExhausted

# The budget is asked again when this much more is kept: it reads counters of the system.
_ASK_EVERY_BYTES = 4 * 2**20


class Activations(StepPhase):
    """The tensors that autograd saves in this process. Thread safety: any thread of the script may
    pack and unpack."""

    def __init__(
        self,
        memory: ManagedMemory,
        allowance: Callable[[], int],
        attributes: Callable[[], Replacer],
        moments: Sequence[MomentName],
        chosen: Choices,
        search: Search | None = None,
    ) -> None:
        """`allowance` says how many bytes of activations the process may keep now; `moments` are
        those reported in this iteration, to which others are added; `chosen` are the script's
        choices; `search`: as for Planning."""
        self._memory = memory
        self._addresses = memory.addresses
        self._allowance = allowance
        self._asked_at_bytes = 0
        self._most_bytes = allowance()
        self._storages = KeptStorages()
        self.moved_bytes = 0  # In all.
        self.has_no_room = False  # Chunks have refused a move in this iteration, the latest one.
        self._move_s = 0.0  # Spent in copies to chunks, in all.
        self._ended = Moves(0, 0.0)  # All moves up to the end of the last iteration.
        self._chosen = chosen
        self._calls = attributes()  # Calls to modules that the script, or a plan, names.
        self._watched: set[type[nn.Module]] = set()  # Their classes.
        self._script_moves = chosen.are_made  # Whether the script may say what is to leave.
        self.planning = Planning(
            attributes, self._storages, moments, self._leave, self._make_room, chosen, search
        )
        self._outcome = PlanOutcome()
        self._closed = False
        self._is_planning = self._plans_next = False
        self.hooks = DefaultHooks(self.pack, self.unpack)

    def open(self) -> None:
        """Begins, in this thread and in those that it starts. Before, only what is saved in a
        `within` block is managed."""
        if self._chosen.default is script_choices.Choice.KEEP:
            return
        self.hooks.set()
        self._begin_planning()

    def _begin_planning(self) -> None:
        self._watch_calls()
        self._is_planning = True
        if self._chosen.default is not script_choices.Choice.MOVE:
            self.planning.open()

    def open_here(self) -> bool:
        """As `open`, in the midst of an iteration, in this thread alone; what is planned begins
        with the next one. False: the script has hooks of its own, or forbids some."""
        if self._closed or self._chosen.default is script_choices.Choice.KEEP:
            return False
        if self.hooks.are_set:
            return True
        if not self.hooks.set_alone():
            return False
        self._plans_next = self._plans_next or not self._is_planning
        return True

    @contextlib.contextmanager
    def within(self, choice: script_choices.Choice) -> Iterator[None]:
        """A part of a forward pass, in this thread, of which everything is to stay, or to leave."""
        self._script_moves = True
        is_first = (
            choice is script_choices.Choice.MOVE and not self._closed and self.hooks.set_alone()
        )
        try:
            with script_choices.within(choice):
                yield
        finally:
            if is_first:
                self.hooks.unset()
            self._leave()

    @property
    def kept_bytes(self) -> int:
        """Bytes that saved tensors have in the process's own memory."""
        return self._storages.bytes

    def pack(self, tensor: torch.Tensor) -> SavedTensor | Reference:
        """The pack hook: called for each tensor that autograd saves."""
        if not is_plain(tensor) or is_captured() or self._memory.copies.holds(tensor):
            return Reference(tensor)
        saved = SavedTensor(tensor)
        if self._script_moves:
            self._leave()
        choice = self._chosen.now()
        if choice is not script_choices.Choice.KEEP and not self._closed and self._may_move(tensor):
            entry = self._storages.add(saved)
            if self.planning.is_recording:
                self.planning.note(entry, tensor)
            if choice is script_choices.Choice.MOVE:
                # Its chunk may be anywhere: the script has not said how far it is to go.
                self._storages.choose(entry, Choice.MOVE_TO_SSD)
            self._keep_budget()
        return saved

    def unpack(self, saved: SavedTensor | Reference) -> torch.Tensor:
        """The unpack hook. It may be called several times for one tensor."""
        # Activations that backward has used before are dead by now.
        if saved.is_moved and self._addresses.here:
            self._memory.arenas.discard_dead_activations()
        return saved.unpack()

    def end_iteration(self) -> None:
        """An optimizer has stepped."""
        self.has_no_room = False
        self._asked_at_bytes = self._storages.bytes
        self._most_bytes = self._allowance()
        self._memory.pressure.end_activations()
        waited_s = self._memory.client.stats().wait_nanoseconds / 1e9
        total = Moves(self.moved_bytes, self._move_s + waited_s)
        before, self._ended = self._ended, total
        moves = Moves(total.bytes - before.bytes, total.seconds - before.seconds)
        if self._plans_next:  # It has seen no whole iteration yet.
            self._plans_next = False
            self._begin_planning()
            return
        self.planning.end_iteration(moves)
        self._watch_calls()
        self._outcome.end_iteration(self.planning.plan)

    def as_json(self) -> dict[str, Any]:
        """The moves, blocks and plans of the run; sizes in bytes."""
        return {
            "moved_bytes": self.moved_bytes,
            "blocks": self.planning.blocks,
            "recomputed_blocks": self.planning.recomputed,
            "is_planned": self.planning.plan is not None,
            "blocks_left_alone": dict(self.planning.reasons),
            "outcome": self._outcome.as_json(),
        }

    def move_some(self, wanted_bytes: int) -> bool:
        """Moves as many bytes to chunks, or all that can leave now; returns whether some did."""
        before_bytes = self._storages.bytes
        self._storages.move_until(max(0, before_bytes - wanted_bytes), self._move)
        return self._storages.bytes < before_bytes

    def close(self) -> None:
        """Takes the hooks off this thread. Where the script has others above them, and in other
        threads, they stay, and do nothing but what they must."""
        self._closed = True
        self.planning.close()
        self._calls.undo()
        self.hooks.unset()

    def _watch_calls(self) -> None:
        """A plan names modules only when they have been found."""
        for kind in self._chosen.classes - self._watched:
            self._calls.replace(kind, "__call__", self._chosen.calling)
            self._watched.add(kind)

    def _may_move(self, tensor: torch.Tensor) -> bool:
        return (
            tensor.device == self._addresses.device
            and tensor.nbytes >= SMALLEST_BYTES
            and not _is_parameter_s(tensor)
            and not self._addresses.manages(tensor)
            and self._addresses.here
            and not tensor.is_quantized
        )

    def _keep_budget(self) -> None:
        kept_bytes = self._storages.bytes
        if abs(kept_bytes - self._asked_at_bytes) >= _ASK_EVERY_BYTES:
            self._asked_at_bytes = kept_bytes
            self._most_bytes = self._allowance()
        if kept_bytes > self._most_bytes:
            self._storages.move_until(self._most_bytes, self._move)

    def _make_room(self, size_bytes: int) -> None:
        self._asked_at_bytes = self._storages.bytes
        self._most_bytes = self._allowance()
        self._storages.move_until(max(0, self._most_bytes - size_bytes), self._move)

    def _leave(self) -> None:
        if not self._closed:
            self._storages.move_leaving(self._move)

    def _move(self, tensor: torch.Tensor, choice: Choice) -> torch.UntypedStorage | None:
        """Copies the storage of a tensor into activation chunks. None: there is no room for it."""
        began_s = time.monotonic()
        size_bytes = tensor.untyped_storage().nbytes()
        with torch.no_grad():
            try:
                target = self._new_activation(size_bytes, choice)
                copy_bytes(self._memory, tensor, target)
            except ResourceExhausted:
                self.has_no_room = True
                return None
        self.has_no_room = False
        self.moved_bytes += size_bytes
        self._move_s += time.monotonic() - began_s
        return target.untyped_storage()

    def _new_activation(self, size_bytes: int, choice: Choice) -> torch.Tensor:
        """Bytes in an activation chunk with the home that the plan says. A tensor that leaves
        without a plan does so to keep the budget, with whatever memory there is."""
        home = Home.LOWEST if choice is Choice.MOVE_TO_SSD else None
        allow_ssd = choice is not Choice.MOVE_TO_HOST
        return self._memory.allocator.activation(
            (size_bytes,), (1,), torch.uint8, home=home, allow_ssd=allow_ssd
        )


def _is_parameter_s(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf that the script trains, or a view of one, as a transposed weight."""
    base: torch.Tensor | None = tensor._base
    whole = tensor if base is None else base
    return whole.requires_grad and whole.is_leaf
