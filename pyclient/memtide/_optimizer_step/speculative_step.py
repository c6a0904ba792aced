"""Speculative steps: step parts that are computed while backward still runs.

A step part writes into shadow chunks and does not count until the commit. So it may be computed as
soon as its gradients are there, and again at the step if the prediction was wrong. A speculative
step repeats the optimizer's last step with its groups' present options (speculative_plan.py).

At the step, all parts are planned as without speculation. A speculative part counts if it is the
same (elements, addresses, options, step numbers, copies, shadow chunks) and no chunk that it read
was leased for writing since. The daemon's chunk versions show that, for whatever a script did in
between; autograd's own counters would miss writes through `p.grad.data` or NumPy
(docs/decisions/0013).

A GradScaler multiplies all gradients after backward. A part that is computed before that multiplies
by the same factor itself, and counts as computed from the scaled gradients if nothing else has
written to them.

The hooks here wait for the daemon only to allocate shadow chunks. There is one attempt at a time,
for one optimizer; those of other optimizers are computed at their steps.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from memtide._capi.client import Kind
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_parts import local_part
from memtide._memory.tensor_references import TensorReference, reference_to
from memtide._optimizer_step.executor import StepCalls, stop
from memtide._optimizer_step.partition import Batch, Interval, Update, batches_of
from memtide._optimizer_step.shadow_chunks import ShadowChunks
from memtide._optimizer_step.speculative_plan import ParameterSlot, SpeculativePlan, Unit
from memtide._telemetry.observer import SpeculativeBatches
from memtide.errors import MemtideError

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

_Key = tuple[tuple[object, ...], tuple[Interval, ...]]
# By place, the id and the version of its chunk.
Marks = dict[int, tuple[int, int]]


@dataclass
class ComputedBatches:
    """The speculative batches of one step, their shadow chunks, and the plan of both."""

    plan: SpeculativePlan
    shadows: dict[int, int]
    batches: dict[_Key, Marks]  # Batches that may count, with the chunks as each has read them.
    count: int  # All batches that were computed, also those that cannot count.


@dataclass
class _Attempt:
    plan: SpeculativePlan
    optimizer: Optimizer
    shadows: dict[int, int]
    waiting: deque[Unit] = field(default_factory=deque)
    workers: list[Future[None]] = field(default_factory=list)
    working: int = 0  # The number of workers that still take units.
    computed: list[tuple[Batch, Marks]] = field(default_factory=list)
    failed: bool = False  # A call failed, so that no shadow chunk's content is certain.
    over: bool = False
    units: int = 0


class SpeculativeSteps:
    """Computes speculative steps of optimizers for which they have been useful. Safe to use from
    any thread."""

    def __init__(self, memory: ManagedMemory, calls: StepCalls, shadows: ShadowChunks) -> None:
        self._ledger = memory.ledger
        self._addresses = memory.addresses
        self._client = memory.client
        self._calls = calls
        self._shadows = shadows
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._stepping = False
        # By the address of a parameter, how often its gradient was accumulated since its last step.
        self._times: dict[int, int] = {}
        self._plans: weakref.WeakKeyDictionary[Optimizer, SpeculativePlan] = (
            weakref.WeakKeyDictionary()
        )
        self._planned: dict[int, tuple[SpeculativePlan, weakref.ref[Optimizer]]] = {}
        self._parameters: dict[int, TensorReference] = {}
        self._scalers: weakref.WeakKeyDictionary[Optimizer, weakref.ref[GradScaler]] = (
            weakref.WeakKeyDictionary()
        )
        self.allowed = True
        self.last = SpeculativeBatches()  # The counts of the last step.

    @property
    def in_progress(self) -> bool:
        """Whether parts of the next step are being computed, or have been."""
        attempt = self._attempt
        return attempt is not None and attempt.units > 0

    def gradient_accumulated(self, parameter: torch.Tensor) -> None:
        """Starts what can be computed now that backward has accumulated a parameter's gradient."""
        address, gradient = parameter.data_ptr(), parameter.grad
        with self._lock:
            if not self.allowed:
                return
            times = self._times[address] = self._times.get(address, 0) + 1
            if self._stepping or address not in self._planned:
                return
            plan, owner = self._planned[address]
            optimizer = owner()
            if gradient is None or not self._addresses.manages(gradient) or optimizer is None:
                return
            if self._attempt is None and not self._begin(plan, optimizer):
                return
            assert self._attempt is not None
            if self._attempt.plan is plan:
                for unit in plan.record_gradient(address, times, gradient.data_ptr()):
                    self._start(self._attempt, unit)

    @contextlib.contextmanager
    def unscaling(
        self, scaler: GradScaler, optimizer: Optimizer, factor: torch.Tensor
    ) -> Iterator[None]:
        """Wraps the operation that multiplies all gradients of an optimizer by `factor`, a tensor
        of one element, after backward."""
        self._scalers[optimizer] = weakref.ref(scaler)
        with self._lock:
            attempt = self._attempt
            if attempt is not None and attempt.optimizer is optimizer:
                attempt.over = True
        if attempt is None or attempt.optimizer is not optimizer:
            yield
            return
        stop(attempt.workers)
        batches = [batch for batch, _ in attempt.computed]
        before = self._marks_of(batches)
        value = factor.item()  # On a GPU this waits for backward, but so have the parts.
        yield
        after = self._marks_of(batches)
        attempt.computed = [
            (
                _unscaled(batch, marks, value, after)
                if all(marks[place] == before[place] for place in batch.reads)
                else (batch, marks)
            )
            for batch, marks in attempt.computed
        ]

    def take(self, optimizer: Optimizer | None) -> ComputedBatches | None:
        """Begins a step: waits for the calls in flight, and returns what was computed for the step.
        Nothing new begins before `learn` or `forget`."""
        with self._lock:
            self._stepping = True
            attempt, self._attempt = self._attempt, None
            if attempt is None or not attempt.units:
                return None
            attempt.over = True
        try:
            for worker in stop(attempt.workers):
                worker.result()  # Raises only errors of this code; MemtideError sets `failed`.
        except BaseException:
            self.forget()
            raise
        if not attempt.computed and not attempt.failed:
            return None
        speculative = ComputedBatches(attempt.plan, attempt.shadows, {}, len(attempt.computed))
        if not attempt.failed and attempt.optimizer is optimizer:
            speculative.batches.update((_key_of(batch), marks) for batch, marks in attempt.computed)
        return speculative

    def remaining(
        self,
        speculative: ComputedBatches | None,
        batches: Sequence[Batch],
        shadows: Mapping[int, int],
    ) -> Sequence[Batch]:
        """The batches of a step that must still be computed: all but those of `speculative`, if the
        chunks that these read have not changed since."""
        self.last = SpeculativeBatches(len(batches))
        if speculative is None:
            return batches
        if speculative.shadows != shadows:
            speculative.batches.clear()
        same = [batch for batch in batches if _key_of(batch) in speculative.batches]
        marks = self._marks_of(same)
        left = [
            batch
            for batch in batches
            if speculative.batches.get(_key_of(batch))
            != {place: marks.get(place) for place in batch.places}
        ]
        counted = len(batches) - len(left)
        self.last = SpeculativeBatches(len(batches), speculative.count, counted)
        speculative.plan.record_outcome(useful=2 * counted > speculative.count)
        return left

    def learn(
        self,
        optimizer: Optimizer | None,
        stepped: Sequence[tuple[torch.Tensor, Update]],
        kinds: dict[int, Kind],
        copies: Mapping[int, Sequence[Interval]],
    ) -> None:
        """Plans the next step like the one that has just been committed."""
        if optimizer is None:
            self.forget()
            return
        groups = {
            local_part(p).data_ptr(): number
            for number, group in enumerate(optimizer.param_groups)
            for p in group["params"]
        }
        with self._lock:
            self._stepping = False
            slots = [
                ParameterSlot(update, groups.get(p.data_ptr(), 0), self._times.pop(p.data_ptr(), 0))
                for p, update in stepped
            ]
            plan = self._plans.get(optimizer)
            if plan is None or not plan.advance(slots, copies):
                plan = SpeculativePlan(
                    slots, copies, self._calls.geometry, self._calls.limits.chunks
                )
                self._leave(self._plans.get(optimizer))
                self._plans[optimizer] = plan
                self._parameters.update({p.data_ptr(): reference_to(p) for p, _ in stepped})
            plan.kinds = kinds
            owner = weakref.ref(optimizer)
            self._planned.update({address: (plan, owner) for address in plan.slots})

    def _leave(self, plan: SpeculativePlan | None) -> None:
        for address in plan.slots if plan is not None else ():
            if self._planned.get(address, (None,))[0] is plan:
                del self._planned[address], self._parameters[address]

    def forget(self) -> None:
        """Drops all plans: a step has failed, or this process steps. The next step is unknown."""
        with self._lock:
            self._stepping = False
            self._plans.clear()
            self._planned.clear()
            self._parameters.clear()
            self._times.clear()

    def close(self) -> None:
        """Waits for the calls in flight; nothing new begins after this."""
        self.allowed = False
        self.take(None)
        self.forget()

    def _begin(self, plan: SpeculativePlan, optimizer: Optimizer) -> bool:
        ledger = self._ledger
        if not plan.worth_attempting or not ledger.active:
            return False
        # A call must find room beside all leases ahead: else the process could wait for itself, as
        # its next lease waits behind the call, and the call for its leases to end. With a device,
        # calls need no room there.
        if self._calls.shares_lease_budget and not ledger.leave(self._calls.early_room):
            return False
        try:
            shadows = self._shadows.of(plan.kinds)
        except MemtideError:  # Probably ResourceExhausted; optimizer.step() will report it.
            return False
        held = {}
        for address in plan.slots:
            parameter = self._parameters[address]()
            gradient = parameter.grad if parameter is not None else None
            if gradient is not None and self._addresses.manages(gradient):
                held[address] = gradient.data_ptr()
        plan.set_gradients(held)
        self._attempt = _Attempt(plan, optimizer, shadows)
        return True

    def _start(self, attempt: _Attempt, unit: Unit) -> None:
        attempt.units += 1
        attempt.waiting.append(unit)
        if attempt.working < self._calls.speculative_depth:
            with contextlib.suppress(RuntimeError):  # The interpreter shuts down.
                attempt.workers.append(self._calls.start(lambda: self._work(attempt)))
                attempt.working += 1

    def _work(self, attempt: _Attempt) -> None:
        while True:
            with self._lock:
                ended = attempt.over or attempt.failed or not threading.main_thread().is_alive()
                if ended or not attempt.waiting:
                    attempt.working -= 1
                    return
                unit = attempt.waiting.popleft()
            try:
                attempt.computed += self._make(attempt, unit)
            except MemtideError:  # Harmless: if it matters, optimizer.step() raises it again.
                attempt.failed = True
            except BaseException:
                attempt.failed = True
                raise

    def _make(self, attempt: _Attempt, unit: Unit) -> list[tuple[Batch, Marks]]:
        updates = attempt.plan.updates_of(unit, attempt.optimizer.param_groups)
        updates = [_scaled(update, self._factor_of(attempt.optimizer)) for update in updates]
        geometry, limits = self._calls.geometry, self._calls.limits
        batches = batches_of(updates, unit.copies, geometry, limits)
        marks = self._marks_of(batches)
        for batch in batches:
            self._calls.make_early(batch, attempt.shadows)
        return [(batch, {place: marks[place] for place in batch.places}) for batch in batches]

    def _factor_of(self, optimizer: Optimizer) -> float:
        """The factor by which a GradScaler will have multiplied the gradients at the step."""
        known = self._scalers.get(optimizer)
        scaler = known() if known is not None else None
        if scaler is None:
            return 1.0
        scale = torch.tensor(scaler.get_scale(), dtype=torch.float64)
        return scale.reciprocal().float().item()  # In the scaler's own arithmetic; 1 / 0 is inf.

    def _marks_of(self, batches: Sequence[Batch]) -> Marks:
        places = sorted(set[int]().union(*(batch.places for batch in batches)))
        return dict(zip(places, self._client.versions(places), strict=True)) if places else {}


def _scaled(update: Update, factor: float) -> Update:
    """An update that multiplies its gradients by `factor`, if that keeps their type, fp32."""
    if factor == 1 or update.options.gradient_format is not torch.float32:
        return update
    return replace(update, options=replace(update.options, gradient_factor=factor))


def _unscaled(batch: Batch, marks: Marks, factor: float, after: Marks) -> tuple[Batch, Marks]:
    """A batch that multiplied its gradients by `factor`, as the batch of gradients that have been
    multiplied in place since; `after` has their chunks' new versions."""
    if any(part.options.gradient_factor != factor for part in batch.parts):
        return batch, marks
    parts = [replace(p, options=replace(p.options, gradient_factor=1.0)) for p in batch.parts]
    return replace(batch, parts=parts), marks | {place: after[place] for place in batch.reads}


def _key_of(batch: Batch) -> _Key:
    return tuple(batch.parts), tuple(batch.copies)
