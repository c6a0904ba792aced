"""Training whose placement and activations are searched in the daemon's own engine."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from memtide._plan_file.answer import Answer, Busy, Choice, Moved
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training

from memtide_plan.calibration import constant
from memtide_plan.estimate.answer_of_step import Step, answer_of, link_seconds
from memtide_plan.estimate.chunks import LEAST_HOST_SLOTS, chunk_bytes_for
from memtide_plan.estimate.extrapolated_steps import grown
from memtide_plan.estimate.limits import NO_ROOM, Need, limit_of, tightest
from memtide_plan.estimate.pools import (
    Pools,
    least_device_bytes,
    shadow_bytes,
    transient_bytes,
)
from memtide_plan.estimate.question import Setting, activations_of, question
from memtide_plan.estimate.system_strategies import SystemStrategy
from memtide_plan.estimate.work import Rates, Work, work_of

# Sequences that a device computes at once are tried up to this many tokens, where not given: more
# are no faster, as products of matrices are large enough.
_MOST_TOKENS = 65536


class Depth(enum.Enum):
    """How long a plan is searched."""

    LOOK = enum.auto()  # In the search's own estimate alone.
    SHORT = enum.auto()  # The engine plays the plan that is best in it.
    WHOLE = enum.auto()


# Plans that the engine plays beside those that need no search: more gain less than a percent.
_REPLAYS = {Depth.SHORT: 0, Depth.WHOLE: 12}
# Plans that are looked at where the engine plays none.
_LOOKS = {Depth.LOOK: 20, Depth.SHORT: 20, Depth.WHOLE: 200}
# Micro-batches that the engine plays where a step waits for a drive (extrapolated_steps.py).
_PLAYED = {Depth.SHORT: 5, Depth.WHOLE: 8}
# Chunks that are played. Where a step waits for a drive, fewer are read and written more often.
_CHUNKS = {Depth.LOOK: 120, Depth.SHORT: 120, Depth.WHOLE: 240}
_DRIVE_CHUNKS = {**_CHUNKS, Depth.SHORT: 240}
_FORESEEN_CHUNKS = 960  # The engine plays none, so that many cost little.


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One way to train: a number of micro-batches and a place of the optimizer."""

    model: Model
    training: Training
    machine: Machine
    strategy: SystemStrategy
    accumulation: int
    step_on: str
    works: tuple[Work, ...]
    rates: Rates
    pools: Pools
    chunk_bytes: int  # In a run; the replay's chunks may be larger.
    depth: Depth = Depth.WHOLE

    @property
    def micro_batch(self) -> int:
        """Sequences that a device computes at once; the last ones may be fewer."""
        return math.ceil(self.training.batch / (self.accumulation * self.machine.devices))

    def steps_in_parts(self) -> bool:
        """Whether memtide's own step is computed in parts on the host, beside backward passes. It
        steps in place where all states are in the memory that computes, or shadow chunks have no
        room anywhere."""
        if self.strategy.foreseen or self.step_on != "host":
            return False
        if self.pools.device:
            return True
        states, passing = self._states(), LEAST_HOST_SLOTS * self.chunk_bytes
        shadows = shadow_bytes(self.model, self.training.states)
        return states + passing > self.pools.host and states + shadows <= self.pools.drive

    def refusal(self) -> str | None:
        """Why it does not fit, where that needs no search."""
        return limit_of(self.needs())

    def needs(self) -> tuple[Need, ...]:
        """The memory that it needs at least, and the memory that there is."""
        needs = (
            self._lowest(),
            Need("host memory", self.least_host_pool(), self.pools.host),
        )
        if not self.pools.device:
            return needs
        return (Need("device memory", self.least_device(), self.pools.device), *needs)

    def _lowest(self) -> Need:
        """Where every chunk of states has its place."""
        states, host, drive = self._states(), self.pools.host, self.pools.drive
        if drive and states > host:
            return Need("drive room (every chunk has its place there)", states, drive)
        return Need("host memory and drives", states, max(host, drive))

    def _states(self) -> float:
        """Bytes of chunks of states. The last chunk of each arena has room left, and each of the
        optimizer's values, which are as wide as weights, has an arena."""
        states, chunk = self.training.states, self.chunk_bytes
        trained = self.model.trained_parameters()
        values = max(1, round(states.optimizer / states.weight))
        arenas = [self.model.parameters() * states.weight, trained * states.gradient]
        arenas += [trained * states.optimizer / values] * values
        return float(chunk * sum(math.ceil(size / chunk) for size in arenas))

    def least_device(self) -> float:
        """Bytes of a device's pool. 0: there is no device."""
        if not self.pools.device:
            return 0.0
        return least_device_bytes(self.works, self.training, self.chunk_bytes)

    def least_host_pool(self) -> float:
        """Bytes of chunks: what passes, or all of them where a drive has no room for each."""
        states = self._states()
        if not self._fits_drive():
            return states
        if not self.pools.device:
            return min(states, LEAST_HOST_SLOTS * self.chunk_bytes)
        return min(states, 2 * self.least_device() * self.machine.devices)

    def questions(self) -> list[dict[str, Any]]:
        """The questions to the planner: one, or three where a step waits for a drive."""
        few = self._played()
        if few == self.accumulation:
            return [self._question()]
        look = replace(self, depth=Depth.LOOK)._question()
        return [{**self._question(), "micro_batches": few}, {**look, "micro_batches": few}, look]

    def _played(self) -> int:
        """Micro-batches of which the engine plays each."""
        if self._is_foreseen() or not self._needs_drive():
            return self.accumulation
        return min(self.accumulation, _PLAYED[self.depth])

    def _fits_drive(self) -> bool:
        return self.pools.drive >= self._states()

    def _needs_drive(self) -> bool:
        return self._states() > self.pools.host

    def _chunks(self) -> int:
        if self.strategy.foreseen:
            return _FORESEEN_CHUNKS
        return (_DRIVE_CHUNKS if self._needs_drive() else _CHUNKS)[self.depth]

    def _is_foreseen(self) -> bool:
        return self.strategy.foreseen or self.depth is Depth.LOOK

    def _question(self) -> dict[str, Any]:
        foreseen = self._is_foreseen()
        training, pools = self.training, self.pools
        played: dict[str, Any] = {}
        if not pools.device:
            # Activations are in the script's own memory, beside the pool.
            saved = sum(work.block.count * work.saved_bytes() for work in self.works)
            training = replace(training, activations=training.activations or "keep")
            pools = replace(pools, host=pools.host + saved)
            played = {"device_bytes": 0}
        if self.step_on == "host" and self._needs_drive():
            pools = replace(pools, host=pools.host - self._ahead())
        document = question(
            Setting(
                model=self.model,
                training=training,
                machine=self.machine,
                works=self.works,
                pools=pools,
                accumulation=self.accumulation,
                step_on=self.step_on,
                step_in_backward=self.strategy.step_in_backward or self.steps_in_parts(),
                replays=_LOOKS[self.depth] if foreseen else _REPLAYS[self.depth],
                foreseen=foreseen,
                played_chunks=self._chunks(),
                run_chunk_bytes=0 if self.strategy.foreseen else self.chunk_bytes,
            ),
            self.rates,
        )
        return {**document, **played}

    def reply(self, replies: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The replies to questions() as one. None: there were no questions."""
        if len(replies) > 1 and all("elapsed_s" in each for each in replies):
            played, few, many = replies
            return grown(played, few, many, self.accumulation / self._played())
        return replies[0] if replies else None

    def answer(self, reply: Mapping[str, Any] | None) -> Answer:
        """The answer of a reply(). None: refusal() says why there is none."""
        refusal, least_pool = self.refusal(), self.least_device()
        if reply is not None and "elapsed_s" not in reply:
            refusal, least_pool = self._without_plan(int(reply["plan"]["least_budget_bytes"]))
        in_chunks = 0.0 if reply is None else float(reply.get("chunk_bytes_at_most", 0))
        if refusal is None:
            below = self.pools.host + (self.pools.drive if self._fits_drive() else 0.0)
            refusal = limit_of([Need("host memory and drives", in_chunks, below)])
        step = None
        if refusal is None and reply is not None:
            step = self._step(reply, in_chunks)
        return answer_of(
            self.training,
            self.machine,
            limit=refusal or tightest(self.needs()),
            least_pools=Pools(device=least_pool, host=self.least_host_pool(), drive=0.0),
            step=step,
        )

    def _step(self, reply: Mapping[str, Any], in_chunks: float) -> Step:
        moved = Moved(
            **{link.name: float(reply.get(f"{link.name}_bytes", 0)) for link in fields(Moved)}
        )
        seconds = max(float(reply["elapsed_s"]) + self._leases_s(moved), self._links_s(moved))
        return Step(
            seconds=seconds,
            by="engine",
            moved_bytes=moved,
            busy=self._busy(reply, moved, seconds),
            choice=self._choice(dict(reply), in_chunks),
        )

    def _leases_s(self, moved: Moved) -> float:
        """Seconds in which the script's thread asks for the chunks that are brought to where it
        computes. A system that knows all transfers ahead does not ask."""
        if self.strategy.foreseen:
            return 0.0
        brought = moved.to_device if self.pools.device else moved.drive_read
        return constant("lease_s") * brought / self.chunk_bytes

    def _without_plan(self, least_budget: int) -> tuple[str, float]:
        """Why the search found no plan, and the least pool of a device with which there is one.
        `least_budget`: the bytes with which chunks can pass."""
        passing = least_budget + transient_bytes(self.works)
        least, what = passing, "device memory"
        if self.training.activations == "keep":
            least += sum(work.block.count * work.saved_bytes() for work in self.works)
            what = "device memory in which activations are kept"
        refusal = limit_of([Need(what, least, self.pools.device)])
        return refusal or NO_ROOM, max(least, self.least_device())

    def _exchange(self) -> tuple[float, float]:
        """Seconds in which gradients are summed over devices, once a step: on the links between
        devices, and on those to the host where there are none."""
        machine, states = self.machine, self.training.states
        ring = 2 * (machine.devices - 1) / machine.devices
        size = ring * self.model.trained_parameters() * states.gradient
        between = machine.between_devices_bytes_per_s
        if between is not None:
            return size / between, 0.0
        slower = min(machine.to_device_bytes_per_s, machine.from_device_bytes_per_s)
        return 0.0, size / slower

    def _links_s(self, moved: Moved) -> float:
        """The least time of a step, by the chunks, activations and sums of gradients on its
        links."""
        between, through_host = self._exchange()
        to_device, from_device, _ = link_seconds(moved, self.machine)
        return max(between, to_device + through_host, from_device + through_host)

    def _busy(self, reply: Mapping[str, Any], moved: Moved, step_s: float) -> Busy:
        computes = float(reply.get("compute_s", 0)) + (
            float(reply.get("step_s", 0)) if self.step_on == "device" else 0.0
        )
        to_device, from_device, drive = link_seconds(moved, self.machine)
        return Busy(
            compute=float(reply.get("compute_s", 0)),
            recompute=float(reply.get("recompute_s", 0)),
            to_device=to_device,
            from_device=from_device,
            drive=drive,
            optimizer=float(reply.get("step_s", 0)),
            exchange=sum(self._exchange()),
            waits=max(0.0, step_s - computes),
        )

    def _ahead(self) -> float:
        """Bytes of the host pool that the script's leases hold ahead of their use, where chunks
        pass it: the chunks that a step uses at a time, but not most of a small pool."""
        return min(LEAST_HOST_SLOTS * self.chunk_bytes, self.pools.host / 4)

    def _choice(self, reply: dict[str, Any], in_chunks: float) -> Choice:
        # A run's chunks are larger than those that were played.
        passing = LEAST_HOST_SLOTS * self.chunk_bytes if self.step_on == "host" else 0.0
        needed = in_chunks + passing
        host = min(self.pools.host, needed)
        goes_down = needed > host and self._fits_drive()
        return Choice(
            chunk_bytes=self.chunk_bytes,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            ranks=self.machine.devices,
            optimizer_on=self.step_on,
            device_pool_bytes=round(self.pools.device),
            host_pool_bytes=round(host),
            # Every chunk has its place on SSD, one that is in host memory, too.
            ssd_pool_bytes=round(min(self.pools.drive, needed)) if goes_down else 0,
            activations=activations_of(reply, self.works),
            resident_bytes=round(float(reply.get("resident_bytes", 0))),
        )


def trials_of(
    model: Model, training: Training, machine: Machine, strategy: SystemStrategy
) -> list[Trial]:
    """The plans to choose from: at least one."""
    rates = strategy.rates(machine.device, training.compute_type)
    pools = Pools.of(machine)
    chunk_bytes = chunk_bytes_for(model, training.states, pools)
    share = math.ceil(training.batch / machine.devices)
    place = training.optimizer_on or (strategy.step if strategy.step_in_backward else None)
    if not pools.device:
        place = "host"
    return [
        Trial(
            model=model,
            training=training,
            machine=machine,
            strategy=strategy,
            accumulation=accumulation,
            step_on=step_on,
            works=work_of(model, training, rates, share / accumulation),
            rates=rates,
            pools=pools,
            chunk_bytes=chunk_bytes,
        )
        for accumulation in _accumulations(training, machine)
        for step_on in ((place,) if place else ("host", "device"))
    ]


def _accumulations(training: Training, machine: Machine) -> list[int]:
    """How many micro-batches a device's sequences may be in, the fewest first."""
    share = math.ceil(training.batch / machine.devices)
    if training.micro_batch is not None:
        return [math.ceil(share / training.micro_batch)]
    least = math.ceil(share * training.sequence / _MOST_TOKENS)
    # Powers of two are enough, and one sequence at a time.
    powers = [1 << exponent for exponent in range(share.bit_length())]
    return [count for count in powers if least <= count < share] + [share]
