"""Training by the fixed rules of another system: which bytes are where, and what a step takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from memtide._plan_file.answer import Answer, Choice
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training

from memtide_plan.estimate.answer_of_step import Step, answer_of
from memtide_plan.estimate.limits import Need, limit_of, tightest
from memtide_plan.estimate.phases import Phases, Setting, moved_bytes, phases
from memtide_plan.estimate.pools import Pools, transient_bytes
from memtide_plan.estimate.system_strategies import SystemStrategy
from memtide_plan.estimate.work import work_of

_BALANCE_STEPS = 16  # Shares of moved activations that are tried.
_GATHERED_BLOCKS = 2  # Blocks whose weights are on the device where they stream.


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A setting, and what its activations do: the shares that move and that are recomputed."""

    setting: Setting
    micro_batch: int
    pools: Pools
    activations: str
    moved: float = 0.0

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("device memory", self.device_bytes(), self.pools.device),
            Need("host memory", self.host_bytes(), self.pools.host),
            Need("room on drives", self.drive_bytes(), self.pools.drive),
        )

    def device_bytes(self) -> float:
        """The most of three moments: as a backward pass begins, with all that is kept; as it ends,
        with all gradients and one block; and in a step."""
        setting = self.setting
        states, strategy = setting.training.states, setting.strategy
        trained = setting.model.trained_parameters()
        one = float(max(work.block.trained_parameters for work in setting.works))
        own = trained / setting.shares(2)
        first, last = one, own if strategy.gradients == "device" else one
        if setting.accumulation > 1:
            first = last  # Sums of the micro-batches before are there from the beginning.
        # A step within the backward pass has no sums, but the gradients of one block.
        each = states.gradient or states.weight * (trained > 0)
        last = last if states.gradient else one
        pieces = self.micro_batch if strategy.in_pieces else 1
        return (
            self._resident_bytes()
            + self._spilled_bytes() / setting.machine.devices
            + max(
                each * first + self._kept_bytes() / pieces,
                each * last + self._widest_layer_bytes() / pieces,
                trained / setting.shares(1) * strategy.cast_in_step,
            )
        )

    def _resident_bytes(self) -> float:
        """States that are on the device all the time, and weights that are gathered there."""
        setting = self.setting
        states, strategy, shares = setting.training.states, setting.strategy, setting.shares(3)
        widest = max(work.block.parameters for work in setting.works) * states.weight
        size = _GATHERED_BLOCKS * widest if strategy.weights != "device" or shares > 1 else 0.0
        if strategy.weights == "device":
            size += setting.model.parameters() * states.weight / shares
        if strategy.optimizer == "device":
            size += states.optimizer * setting.model.trained_parameters() / setting.shares(1)
        return size

    def _kept_bytes(self) -> float:
        """Activations as a backward pass begins, with the gradients of the widest ones."""
        works, strategy = self.setting.works, self.setting.strategy
        if self.activations == "keep":
            saved = sum(work.block.count * work.saved_bytes() for work in works)
            return saved + transient_bytes(works)
        # A block that is computed again keeps its input. The others, of which the head is the last,
        # have passed before one has all of it back.
        others = [work for work in works if not work.block.recomputable]
        passed = sum(work.saved_bytes() for work in others)
        size = max(passed + transient_bytes(others or works), self._widest_layer_bytes())
        if self.activations == "recompute" and not (strategy.in_pieces or strategy.moves_inputs):
            size += sum(
                work.block.count * work.input_bytes for work in works if work.block.recomputable
            )
        return size

    def _widest_layer_bytes(self) -> float:
        """Activations of one block that is computed again, with their gradients."""
        works = self.setting.works
        layers = [work for work in works if work.block.recomputable] or works
        return max(work.saved_bytes() for work in layers) + transient_bytes(layers)

    def _moved_bytes(self) -> float:
        return moved_bytes(self.setting, self.moved) * self.setting.machine.devices

    def _states(self, place: str) -> float:
        """Bytes of states in a place, of all devices."""
        setting, strategy = self.setting, self.setting.strategy
        states, trained = setting.training.states, setting.model.trained_parameters()
        size = 0.0
        if strategy.weights == place:
            size += setting.model.parameters() * states.weight
        if strategy.gradients == place:
            size += trained * max(states.gradient, strategy.drive_gradients)
        if strategy.optimizer == place:
            size += trained * states.optimizer
        return size

    def host_bytes(self) -> float:
        return self._wanted_host_bytes() - self._spilled_bytes()

    def _wanted_host_bytes(self) -> float:
        buffers = self.setting.model.trained_parameters() * self.setting.strategy.host_buffers
        return self._states("host") + buffers + self._moved_bytes() - self._to_drive()

    def _spilled_bytes(self) -> float:
        """States of all devices that are on devices, as the host has no room."""
        if not self.setting.strategy.spills_to_device:
            return 0.0
        return max(0.0, self._wanted_host_bytes() - self.pools.host)

    def _to_drive(self) -> float:
        """Moved bytes for which host memory has no room."""
        if self.setting.strategy.optimizer != "drive":
            return 0.0
        room = max(0.0, self.pools.host - self._states("host"))
        return max(0.0, self._moved_bytes() - room)

    def drive_bytes(self) -> float:
        return self._states("drive") + self._to_drive()

    def phases(self) -> Phases:
        moved = self._moved_bytes()
        recomputed = {"keep": 0.0, "recompute": 1.0}.get(self.activations, 1.0 - self.moved)
        return phases(
            self.setting,
            moved=self.moved,
            recomputed=recomputed,
            to_drive=self._to_drive() / moved if moved else 0.0,
        )

    def fits(self) -> bool:
        return limit_of(self.needs()) is None


def answer_to(
    model: Model, training: Training, machine: Machine, strategy: SystemStrategy
) -> Answer:
    """The answer of a system that is not planned."""
    trials = list(_trials(model, training, machine, strategy))
    fitting = [trial for trial in trials if trial.fits()]
    best = min(fitting, key=lambda trial: trial.phases().seconds(), default=None)
    # The last trial needs least of the device's memory.
    found = best or trials[-1]
    limit = tightest(found.needs()) if best is not None else limit_of(found.needs()) or ""
    return answer_of(
        training,
        machine,
        limit=limit,
        least_pools=Pools(device=found.device_bytes(), host=found.host_bytes(), drive=0.0),
        step=None if best is None else _step(best),
    )


def _step(trial: _Trial) -> Step:
    made = trial.phases()
    return Step(
        seconds=made.seconds(),
        by="phases",
        moved_bytes=made.moved_bytes(trial.setting.machine),
        busy=made.busy(),
        choice=_choice(trial),
    )


def _trials(
    model: Model, training: Training, machine: Machine, strategy: SystemStrategy
) -> Iterator[_Trial]:
    rates = strategy.rates(machine.device, training.compute_type)
    pools = Pools.of(machine)
    share = math.ceil(training.batch / machine.devices)
    fixed = training.micro_batch
    for micro_batch in (
        [min(fixed, share)]
        if fixed is not None
        else [m for m in range(share, 0, -1) if share % m == 0]
    ):
        works = work_of(model, training, rates, micro_batch)
        setting = Setting(
            model=model,
            training=training,
            machine=machine,
            strategy=strategy,
            works=works,
            rates=rates,
            accumulation=math.ceil(share / micro_batch),
        )
        for activations, moved in _activations(training.activations or strategy.activations):
            yield _Trial(
                setting=setting,
                micro_batch=micro_batch,
                pools=pools,
                activations=activations,
                moved=moved,
            )


def _activations(word: str | None) -> list[tuple[str, float]]:
    """The possible choices for activations, each with the share that moves."""
    if word == "balance":
        return [("balance", i / _BALANCE_STEPS) for i in range(_BALANCE_STEPS + 1)]
    if word is None:
        return [("keep", 0.0), ("recompute", 0.0)]
    return [(word, 1.0 if word == "move" else 0.0)]


def _choice(trial: _Trial) -> Choice:
    setting = trial.setting
    words = ["recompute" if trial.activations == "balance" else trial.activations]
    blocks = sum(work.block.count for work in setting.works)
    if trial.activations == "balance":
        moving = round(trial.moved * blocks)
        words = ["move"] * moving + ["recompute"] * (blocks - moving)
    else:
        words *= blocks
    return Choice(
        chunk_bytes=0,
        micro_batch=trial.micro_batch,
        accumulation=setting.accumulation,
        ranks=setting.machine.devices,
        optimizer_on=setting.strategy.step,
        device_pool_bytes=round(trial.device_bytes()),
        host_pool_bytes=round(trial.host_bytes()),
        ssd_pool_bytes=round(trial.drive_bytes()),
        activations=tuple(words),
    )
