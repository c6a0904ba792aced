"""Whether all chunks of a process fit at once: then one hold leases all, else chunks are freed."""

from __future__ import annotations

from memtide._memory.arenas import Arenas
from memtide._memory.leases import LeaseLedger
from memtide._util.step_phase import Step, StepPhase


class MemoryPressure(StepPhase):
    """The chunks of all arenas, beside the leases and the slots that the process may have."""

    def __init__(self, arenas: Arenas, ledger: LeaseLedger, *, on_device: bool) -> None:
        self._arenas = arenas
        self._ledger = ledger
        self._on_device = on_device

    def exceeds_lease_budget(self) -> bool:
        """Whether there are more chunks than may be leased at once. The ledger reads that budget
        once an iteration, as the job's share of a pool may change."""
        return self._arenas.chunks() > self._ledger.budget

    def overflows(self) -> bool:
        """Whether optimizer steps are made in parts, since the chunks do not fit: in host memory,
        more than its slots; on a device, more than its lease budget, because chunks evicted from
        there are already where parts are computed (docs/decisions/0013)."""
        most = self._ledger.budget if self._on_device else self._ledger.slots
        return self._arenas.chunks_of_steps() > most

    def note_chunks(self) -> None:
        """Tells the ledger whether leases are needed. To be called when chunks were added."""
        ledger = self._ledger
        ledger.active = (ledger.strict and not ledger.holding) or self.exceeds_lease_budget()

    def may_use_all(self) -> bool:
        """Called when an arena may have grown. During a hold no operation leases what it uses, so
        the hold has to have the new chunks, too. False: they do not fit. The caller drops the
        tensor that it has there, and what was to be moved stays in ordinary memory."""
        self.note_chunks()
        if not self._ledger.holding or self.is_all_held():
            return True
        return self._ledger.extend_hold(self._arenas.places())

    def after_step(self, step: Step) -> None:
        """After a first step, frees also the room that was reserved for expected tensors."""
        if step.is_first:
            self.trim_all()
        else:
            self.trim()

    def trim_all(self) -> None:
        """Returns all chunks without a live tensor to the pools."""
        self._arenas.close()
        self.note_chunks()

    def trim(self) -> None:
        """Returns chunks without a live tensor to the pools, if memory is short."""
        if self.exceeds_lease_budget():
            self._arenas.trim()
        self.note_chunks()

    def free_dead_gradients(self) -> None:
        """Frees the chunks of gradients that the script has dropped, if memory is short: else they
        would be written back to make room, for nothing, and a write to them would first read the
        dead content from SSD. New chunks have no content to read."""
        gradients = self._arenas.gradients
        if gradients.has_returned and self.exceeds_lease_budget():
            gradients.renew()
            self.note_chunks()

    def end_activations(self) -> None:
        """Called once an iteration. The chunks of activations that are dropped are used again."""
        self._arenas.end_iteration()
        self.note_chunks()

    def hold_all(self) -> bool:
        """Begins a hold of all chunks. False: they do not all fit. The chunks of gradients that the
        script has dropped are freed before: during a hold there will be no others."""
        self._arenas.gradients.trim()
        held = self._ledger.hold(self._arenas.places())
        self.note_chunks()
        return held

    def is_all_held(self) -> bool:
        """Whether the hold has all chunks. During a hold none is freed, since all are leased."""
        return self._ledger.held_chunks == self._arenas.chunks()

    def end_hold(self) -> None:
        """Ends the hold, if there is one."""
        self._ledger.end_hold()
        self.note_chunks()
