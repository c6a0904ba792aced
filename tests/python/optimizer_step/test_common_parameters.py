"""Chunks of parameters that no optimizer has are offered, seldom, until they are shared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from memtide._capi.client import Kind, Places
from memtide._optimizer_step import common_parameters
from memtide._optimizer_step.common_parameters import CommonParameters
from memtide._util.step_phase import Step
from memtide.errors import ResourceExhausted, Unavailable

_STEP = Step(torch.optim.SGD([torch.zeros(1)], lr=0.1), is_first=False)
_STEP.optimizer.param_groups.clear()  # It has no parameters of a script.


class Memory:
    """Memory, its parts and its client, of parameters of one element at each place."""

    def __init__(self, count: int) -> None:
        self.parameters = [torch.zeros(1, requires_grad=True) for _ in range(count)]
        self.offers: list[tuple[int, ...]] = []
        self.shared: set[int] = set()  # Places that another script has, too.
        self.error: Unavailable | ResourceExhausted | None = None
        self.states = {100, 101}
        self.repeated: list[tuple[int, ...]] = []

        self.client = self.arenas = self.addresses = self

    def of(self, kind: Kind) -> SimpleNamespace:
        assert kind is Kind.PARAMETER
        return SimpleNamespace(places=set(range(len(self.parameters))))

    def state_places(self) -> set[int]:
        return self.states

    def element_places(self, tensor: torch.Tensor) -> range:
        place = next(i for i, p in enumerate(self.parameters) if p is tensor)
        return range(place, place + 1)

    def offer_when_written(self, places: Places) -> None:
        if self.error is not None:
            raise self.error
        self.repeated.append(places.numbers)

    def offer(self, places: Places) -> list[int]:
        self.offers.append(places.numbers)
        if self.error is not None:
            raise self.error
        return [place for place in places.numbers if place in self.shared]


def _steps(common: CommonParameters, count: int) -> None:
    for _ in range(count):
        common.after_step(_STEP)


def test_what_no_optimizer_has_is_offered() -> None:
    memory = Memory(5)
    common = CommonParameters(memory)  # type: ignore[arg-type]
    first = torch.optim.SGD([memory.parameters[1]], lr=0.1)
    second = torch.optim.SGD([memory.parameters[4]], lr=0.1)
    common.know(first)
    common.know(second)
    _steps(common, 1)
    assert memory.offers == [(0, 2, 3)]
    first.add_param_group({"params": [memory.parameters[3]]})
    _steps(common, 1)
    assert memory.offers[1:] == [(0, 2)]


def test_what_is_shared_is_not_offered_again() -> None:
    memory = Memory(3)
    common = CommonParameters(memory)  # type: ignore[arg-type]
    memory.shared = {0, 2}
    _steps(common, 2)
    assert memory.offers == [(0, 1, 2), (1,)]
    memory.shared = {1}
    _steps(common, 200)
    assert memory.offers[2:] == [(1,)]


def test_offers_become_seldom_while_nobody_has_the_same() -> None:
    memory = Memory(1)
    common = CommonParameters(memory)  # type: ignore[arg-type]
    at = []
    for step in range(1, 300):
        before = len(memory.offers)
        common.after_step(_STEP)
        if len(memory.offers) > before:
            at.append(step)
    assert at == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]


def test_a_daemon_without_room_is_asked_again_later() -> None:
    memory = Memory(1)
    common = CommonParameters(memory)  # type: ignore[arg-type]
    memory.error = ResourceExhausted("no room")
    _steps(common, 1)
    memory.error = Unavailable("it drains")
    _steps(common, 1)
    memory.error, memory.shared = None, {0}
    _steps(common, 10)
    assert len(memory.offers) == 3


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_parameters, "is_rank", lambda: True)


@pytest.mark.usefixtures("ranks")
def test_a_rank_on_a_device_offers_all_that_it_has_once() -> None:
    memory = Memory(2)
    common = CommonParameters(memory, on_device=True)  # type: ignore[arg-type]
    common.know(torch.optim.SGD(memory.parameters, lr=0.1))
    _steps(common, 3)
    assert memory.repeated == [(0, 1, 100, 101)]
    assert not memory.offers
    memory.states = {101, 102}
    _steps(common, 2)
    assert memory.repeated[1:] == [(102,)]
    memory.states = {100, 101, 102}  # A new chunk at an old place.
    _steps(common, 1)
    assert memory.repeated[2:] == [(100,)]


@pytest.mark.usefixtures("ranks")
def test_a_rank_offers_again_what_a_daemon_has_refused() -> None:
    memory = Memory(1)
    common = CommonParameters(memory, on_device=True)  # type: ignore[arg-type]
    memory.error = Unavailable("it drains")
    _steps(common, 1)
    memory.error = None
    _steps(common, 2)
    assert memory.repeated == [(0, 100, 101)]


@pytest.mark.usefixtures("ranks")
def test_ranks_without_a_device_offer_what_is_frozen_alone() -> None:
    memory = Memory(1)
    _steps(CommonParameters(memory), 1)  # type: ignore[arg-type]
    assert memory.offers == [(0,)]
    assert not memory.repeated


def test_one_process_on_a_device_offers_what_is_frozen_alone() -> None:
    memory = Memory(1)
    _steps(CommonParameters(memory, on_device=True), 1)  # type: ignore[arg-type]
    assert memory.offers == [(0,)]
    assert not memory.repeated
