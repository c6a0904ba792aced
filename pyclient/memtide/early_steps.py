"""Parts of a step that are made while backward works.

Parts write into twins, and nothing counts until it is published: so a part may be made as soon as
its gradients are there, and be made again at the step if it turns out to be another one. What is
made early is what the optimizer's last step was, with its groups' options of now (early_plan.py).
At the step all parts are planned as ever, and one made early counts if it is the same (elements,
addresses, options, step numbers, copies, twins) and no chunk that it read has been opened for
writing since before it was made, which the daemon knows (its chunks have versions). That covers
whatever a script may do meanwhile, also past autograd's own counters (`p.grad.data`, NumPy).

A GradScaler multiplies all gradients when backward is over. What is made before that is made of
gradients times its factor, and counts as made of what they become, if nobody else writes to them.

Hooks never wait here for the daemon, but to get the twins. One attempt at a time, of one optimizer;
what belongs to another one is made at its step.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from memtide._native import Kind
from memtide._steps import Format
from memtide.adopt import Adopter, local_part
from memtide.early_plan import Plan, Seat, Unit
from memtide.errors import MemtideError
from memtide.observer import EarlyBatches
from memtide.step_calls import DEPTH, StepCalls, stop
from memtide.step_pieces import Batch, Interval, Update, batches_of
from memtide.twins import Twins

_Key = tuple[tuple[object, ...], tuple[Interval, ...]]
# A chunk's name and its version, by place.
Marks = dict[int, tuple[int, int]]


@dataclass
class Made:
    """What was made early into which twins, and where its batches begin."""

    plan: Plan
    twins: dict[int, int]
    batches: dict[_Key, Marks]
    count: int  # Of them, before it was known that they are of no use.


@dataclass
class _Attempt:
    plan: Plan
    optimizer: Optimizer
    twins: dict[int, int]
    waiting: deque[Unit] = field(default_factory=deque)
    workers: list[Future[None]] = field(default_factory=list)
    working: int = 0  # Of the workers, those that look for more.
    made: list[tuple[Batch, Marks]] = field(default_factory=list)
    failed: bool = False  # What others put into the twins may have ended with it.
    over: bool = False
    units: int = 0


class EarlySteps:
    """Makes parts of steps early, where that has been of use. Safe to use from any thread."""

    def __init__(self, adopter: Adopter, calls: StepCalls, twins: Twins) -> None:
        self._adopter = adopter
        self._client = adopter.client
        self._calls = calls
        self._twins = twins
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._stepping = False
        self._times: dict[int, int] = {}  # That gradients came, by the address of the parameter.
        self._plans: weakref.WeakKeyDictionary[Optimizer, Plan] = weakref.WeakKeyDictionary()
        self._planned: dict[int, tuple[Plan, weakref.ref[Optimizer]]] = {}
        self._parameters: dict[int, TensorWeakRef] = {}
        self._scalers: weakref.WeakKeyDictionary[Optimizer, weakref.ref[torch.amp.GradScaler]] = (
            weakref.WeakKeyDictionary()
        )
        # Most of host memory stays the process's.
        self._depth = max(1, min(DEPTH, calls.host_slots // 2 // calls.most_chunks))
        self.allowed = True
        self.last = EarlyBatches()  # Of the last step.

    @property
    def under_way(self) -> bool:
        """Whether parts of the next step are being made, or have been."""
        attempt = self._attempt
        return attempt is not None and attempt.units > 0

    def gradient_came(self, parameter: torch.Tensor) -> None:
        """Backward has accumulated into the parameter's gradient."""
        address, gradient = parameter.data_ptr(), parameter.grad
        if not self.allowed:
            return
        with self._lock:
            times = self._times[address] = self._times.get(address, 0) + 1
            if self._stepping or address not in self._planned:
                return
            plan, owner = self._planned[address]
            optimizer = owner()
            if gradient is None or not self._adopter.manages(gradient) or optimizer is None:
                return
            if self._attempt is None and not self._begin(plan, optimizer):
                return
            assert self._attempt is not None
            if self._attempt.plan is plan:
                for unit in plan.came(address, times, gradient.data_ptr()):
                    self._start(self._attempt, unit)

    @contextlib.contextmanager
    def unscaling(
        self, scaler: torch.amp.GradScaler, optimizer: Optimizer, factor: torch.Tensor
    ) -> Iterator[None]:
        """Around what multiplies all of an optimizer's gradients by `factor`, one number, after
        backward."""
        self._scalers[optimizer] = weakref.ref(scaler)
        with self._lock:
            attempt = self._attempt
            if attempt is not None and attempt.optimizer is optimizer:
                attempt.over = True
        if attempt is None or attempt.optimizer is not optimizer:
            yield
            return
        stop(attempt.workers)
        batches = [batch for batch, _ in attempt.made]
        before = self._marks_of(batches)
        value = factor.item()  # On a GPU this waits for backward, as the parts have, too.
        yield
        after = self._marks_of(batches)
        attempt.made = [
            (
                _unscaled(batch, marks, value, after)
                if all(marks[place] == before[place] for place in batch.reads)
                else (batch, marks)
            )
            for batch, marks in attempt.made
        ]

    def take(self, optimizer: Optimizer | None) -> Made | None:
        """A step begins: what has been made for it, when nothing is under way any more. Until
        `learn` or `forget`, nothing is begun."""
        with self._lock:
            self._stepping = True
            attempt, self._attempt = self._attempt, None
            if attempt is None or not attempt.units:
                return None
            attempt.over = True
        try:
            for worker in stop(attempt.workers):
                worker.result()  # Raises what is a mistake of ours.
        except BaseException:
            self.forget()
            raise
        if not attempt.made and not attempt.failed:
            return None
        made = Made(attempt.plan, attempt.twins, {}, len(attempt.made))
        if not attempt.failed and attempt.optimizer is optimizer:
            made.batches.update((_key_of(batch), marks) for batch, marks in attempt.made)
        return made

    def left(
        self, made: Made | None, batches: Sequence[Batch], twins: Mapping[int, int]
    ) -> Sequence[Batch]:
        """The batches of a step that must be made now, of all: what was made of others counts."""
        self.last = EarlyBatches(len(batches))
        if made is None:
            return batches
        if made.twins != twins:
            made.batches.clear()
        same = [batch for batch in batches if _key_of(batch) in made.batches]
        marks = self._marks_of(same)
        left = [
            batch
            for batch in batches
            if made.batches.get(_key_of(batch))
            != {place: marks.get(place) for place in batch.places}
        ]
        counted = len(batches) - len(left)
        self.last = EarlyBatches(len(batches), made.count, counted)
        made.plan.judge(useful=2 * counted > made.count)
        return left

    def learn(
        self,
        optimizer: Optimizer | None,
        stepped: Sequence[tuple[torch.Tensor, Update]],
        kinds: dict[int, Kind],
        copies: Mapping[int, Sequence[Interval]],
    ) -> None:
        """A step has been published: the next one may be like it."""
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
            seats = [
                Seat(update, groups.get(p.data_ptr(), 0), self._times.pop(p.data_ptr(), 0))
                for p, update in stepped
            ]
            plan = self._plans.get(optimizer)
            if plan is None or not plan.again(seats, copies):
                plan = Plan(seats, copies, self._calls.geometry, self._calls.most_chunks)
                self._leave(self._plans.get(optimizer))
                self._plans[optimizer] = plan
                self._parameters.update({p.data_ptr(): TensorWeakRef(p) for p, _ in stepped})
            plan.kinds = kinds
            owner = weakref.ref(optimizer)
            self._planned.update({address: (plan, owner) for address in plan.seats})

    def _leave(self, plan: Plan | None) -> None:
        for address in plan.seats if plan is not None else ():
            if self._planned.get(address, (None,))[0] is plan:
                del self._planned[address], self._parameters[address]

    def forget(self) -> None:
        """A step has failed, or optimizers step elsewhere: nothing is known of the next one."""
        with self._lock:
            self._stepping = False
            self._plans.clear()
            self._planned.clear()
            self._parameters.clear()
            self._times.clear()

    def close(self) -> None:
        """Ends what is under way; nothing is begun any more."""
        self.allowed = False
        self.take(None)
        self.forget()

    def _begin(self, plan: Plan, optimizer: Optimizer) -> bool:
        ledger = self._adopter.ledger
        if not plan.hopeful or not ledger.active:
            return False
        # A call must find room beside all that is leased ahead: else the process, whose next lease
        # waits behind the call, could wait for itself. On a device, leases are not in host memory.
        if not self._client.properties.device_slots and not ledger.leave(self._calls.most_chunks):
            return False
        try:
            twins = self._twins.of(plan.kinds)
        except MemtideError:  # Of room, most likely: the step will see.
            return False
        held = {}
        for address in plan.seats:
            parameter = self._parameters[address]()
            gradient = parameter.grad if parameter is not None else None
            if gradient is not None and self._adopter.manages(gradient):
                held[address] = gradient.data_ptr()
        plan.holds(held)
        self._attempt = _Attempt(plan, optimizer, twins)
        return True

    def _start(self, attempt: _Attempt, unit: Unit) -> None:
        attempt.units += 1
        attempt.waiting.append(unit)
        if attempt.working < self._depth:
            with contextlib.suppress(RuntimeError):  # The interpreter is ending.
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
                attempt.made += self._make(attempt, unit)
            except MemtideError:  # It comes again at the step, or it does not matter.
                attempt.failed = True
            except BaseException:
                attempt.failed = True
                raise

    def _make(self, attempt: _Attempt, unit: Unit) -> list[tuple[Batch, Marks]]:
        updates = attempt.plan.updates_of(unit, attempt.optimizer.param_groups)
        updates = [_scaled(update, self._factor_of(attempt.optimizer)) for update in updates]
        geometry, most_chunks = self._calls.geometry, self._calls.most_chunks
        batches = batches_of(updates, unit.copies, geometry, most_chunks)
        marks = self._marks_of(batches)
        for batch in batches:
            self._calls.make_one(batch, attempt.twins)
        return [(batch, {place: marks[place] for place in batch.places}) for batch in batches]

    def _factor_of(self, optimizer: Optimizer) -> float:
        """What the gradients will have been multiplied by when the optimizer steps."""
        known = self._scalers.get(optimizer)
        scaler = known() if known is not None else None
        if scaler is None:
            return 1.0
        scale = torch.tensor(scaler.get_scale(), dtype=torch.float64)
        return scale.reciprocal().float().item()  # As the scaler itself has it; of zero, infinite.

    def _marks_of(self, batches: Sequence[Batch]) -> Marks:
        places = sorted(set[int]().union(*(batch.places for batch in batches)))
        return dict(zip(places, self._client.versions(places), strict=True)) if places else {}


def _scaled(update: Update, factor: float) -> Update:
    """An update of gradients times a factor, if these are of the type that the product has."""
    if factor == 1 or update.options.gradient_format is not Format.FLOAT32:
        return update
    return replace(update, options=replace(update.options, gradient_factor=factor))


def _unscaled(batch: Batch, marks: Marks, factor: float, after: Marks) -> tuple[Batch, Marks]:
    """A batch made of gradients times a factor, as one made of what they are after that."""
    if any(part.options.gradient_factor != factor for part in batch.parts):
        return batch, marks
    parts = [replace(p, options=replace(p.options, gradient_factor=1.0)) for p in batch.parts]
    return replace(batch, parts=parts), marks | {place: after[place] for place in batch.reads}


def _key_of(batch: Batch) -> _Key:
    return tuple(batch.parts), tuple(batch.copies)
