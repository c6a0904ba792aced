"""Makes one optimizer step in parts, into shadow chunks, and commits it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection

import torch
from torch.optim import Optimizer

from memtide._capi.client import Kind
from memtide._checkpoint.pending_checkpoints import PendingCheckpoints
from memtide._daemon.training import Training
from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.committed_job import CommittedJob
from memtide._optimizer_step.executor import StepCalls
from memtide._optimizer_step.partition import Interval, Update, batches_of, copies_of
from memtide._optimizer_step.present_step import PresentStep
from memtide._optimizer_step.rollback import NotFinite
from memtide._optimizer_step.shadow_chunks import ShadowChunks
from memtide._optimizer_step.speculative_step import ComputedBatches, SpeculativeSteps
from memtide._optimizer_step.unstepped_parameters import UnsteppedParameters
from memtide._telemetry.observer import Observer
from memtide.errors import Aborted, ResourceExhausted


class Written(Exception):
    """Another thread has written to chunks from which a step was made."""

    def __str__(self) -> str:
        return "another thread writes to chunks while a step is made of them"


class StepInParts:
    """The parts of the steps of one client, and the commits that end them. One thread at a time
    makes a step."""

    def __init__(
        self,
        memory: ManagedMemory,
        observer: Observer,
        training: Training | None,
        job: CommittedJob | None,
        present: PresentStep,
        name_at: Callable[[int], str],
    ) -> None:
        """The arguments are those of OffloadedSteps. `present`: the step of the calling thread."""
        self._memory = memory
        self._client = memory.client
        self._observer = observer
        self._present = present
        self.job = job or CommittedJob()
        # Whether the job is a named one of several ranks, or of one of them, which wait for each
        # other in each step, also in one that changes nothing.
        self.has_ranks = job is not None and memory.client.has_other_ranks
        self.calls = StepCalls(memory.client, training, name_at)
        self.shadows = ShadowChunks(memory.client)
        self.checkpoints = PendingCheckpoints(memory)
        self.speculative = SpeculativeSteps(memory, self.calls, self.shadows)
        commit = functools.partial(self.commit, None)
        self._unstepped = UnsteppedParameters(memory.arenas, self.calls, self.shadows, commit)
        self._stepped: Collection[int] = ()  # The places that the last step has changed.
        self.here = ""  # Why the script's thread steps something in chunks; empty: it does not.
        self.steps = 0  # Committed steps.

    def run(self, stepped: list[tuple[torch.Tensor, Update]]) -> None:
        """Makes the present step of these parameters. Nothing has changed if it raises Written,
        ResourceExhausted or NotFinite."""
        began = time.monotonic()
        self._present.release()
        self._memory.ledger.release_all()
        self._observer.moment("step", "parts")
        kinds = self._written(updates := [update for _, update in stepped])
        most = self._memory.client.limits.chunks_per_call
        if len(kinds) > most:
            raise ResourceExhausted(f"a step changes {len(kinds)} chunks; it may change {most}")
        self.checkpoints.before_step(kinds)
        self._memory.copies.before_writing(kinds.keys())
        try:
            versions = self._versions(kinds)
            speculative = self.speculative.take(self._present.optimizer)
            copies = copies_of(updates, self._memory.arenas.storages.live(), self.calls.geometry)
            shadows = self._shadows_of(kinds, speculative)
            self._make(updates, copies, shadows, speculative)
            # A rank whose commit is refused ends: others wait for it.
            if self.has_ranks and versions != self._versions(kinds):
                raise Written
            self._commit_unwritten(shadows, versions)
        except BaseException:
            self.speculative.forget()
            self.shadows.free()
            raise
        if self.checkpoints.wanted:
            self.shadows.release_ownership(shadows)
            self.checkpoints.start_writing(shadows)
        self.steps += 1
        self._stepped = kinds.keys()
        self.speculative.learn(self._present.optimizer, stepped, kinds, copies)
        self._observer.stepped(time.monotonic() - began, self.speculative.last)
        self.job.committed(self._present.optimizer)

    def _shadows_of(
        self, kinds: dict[int, Kind], speculative: ComputedBatches | None
    ) -> dict[int, int]:
        if speculative is not None and not speculative.batches:
            self.shadows.free()  # No speculative batch counts, so their content is unused.
        try:
            return self.shadows.of(kinds)
        except ResourceExhausted:
            self._memory.pressure.trim_all()
            self.checkpoints.wait()
            return self.shadows.of(kinds)

    def _versions(self, kinds: dict[int, Kind]) -> dict[int, tuple[int, int]]:
        # Ranks that share chunks commit together, and change versions of each other.
        if self.calls.shares:
            return {}
        return dict(zip(kinds, self._client.versions(list(kinds)), strict=True))

    def _written(self, updates: list[Update]) -> dict[int, Kind]:
        """The places that a step changes, and the kind of chunk of each."""
        kinds: dict[int, Kind] = {}
        for update in updates:
            for number, span in enumerate(update.written):
                kind = Kind.OPTIMIZER_STATE if number else Kind.PARAMETER
                size_bytes = update.elements * span.item_bytes
                for place in self._memory.addresses.places_of(span.address, size_bytes):
                    kinds.setdefault(place, kind)
        return kinds

    def _make(
        self,
        updates: list[Update],
        copies: dict[int, list[Interval]],
        shadows: dict[int, int],
        speculative: ComputedBatches | None,
    ) -> None:
        cuts = speculative.plan.cuts if speculative is not None and speculative.batches else ()
        batches = batches_of(updates, copies, self.calls.geometry, self.calls.limits, cuts)
        non_finite = self.calls.make(
            self.speculative.remaining(speculative, batches, shadows), shadows
        )
        if self.calls.count_non_finite and (
            non_finite := non_finite + self._present.undo.non_finite
        ):
            raise NotFinite(non_finite)

    def commit(
        self,
        stepping: Optimizer | None,
        shadows: dict[int, int],
        versions: dict[int, tuple[int, int]] | None = None,
        *,
        with_all_ranks: bool = False,
    ) -> None:
        """Commits the contents of the shadow chunks. `stepping` has made one more step by that.
        `versions`: by place, the chunk and the version that it must have still."""
        self._client.commit(
            self._client.committed()[0] + 1,
            list(shadows),
            list(shadows.values()),
            self.job.manifest_bytes(stepping, self.here),
            keep_old_content=self.checkpoints.wanted and bool(shadows),
            with_all_ranks=with_all_ranks and self.has_ranks,
            unwritten=[versions[place] for place in shadows] if versions else (),
        )
        self._present.is_committed |= with_all_ranks

    def _commit_unwritten(
        self, shadows: dict[int, int], versions: dict[int, tuple[int, int]]
    ) -> None:
        """Commits a step. Written: another thread has written since the versions were read."""
        try:
            self.commit(self._present.optimizer, shadows, versions, with_all_ranks=True)
        except Aborted as error:
            if self.has_ranks:
                raise
            raise Written from error

    def share_unstepped(self) -> None:
        """Shares the parameters that the last step has not changed with other ranks."""
        self._unstepped.share(self._stepped)

    def close(self) -> None:
        """Ends what is in flight and frees the shadow chunks."""
        self.speculative.close()
        self.checkpoints.write_now()
        self.checkpoints.wait()
        self.calls.close()
        self.shadows.free()
