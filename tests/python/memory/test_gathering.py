"""Parameters in nearly empty chunks move together before the first step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import ResourceExhausted

_SMALL = CHUNK_BYTES // 4 // 4  # Elements: four of them fill a chunk.


class Model(torch.nn.Module):
    """Vectors, of which four are in a chunk."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            self.register_parameter(str(number), torch.nn.Parameter(torch.randn(_SMALL)))

    def forward(self) -> torch.Tensor:
        return torch.stack([vector.sum() for vector in self.parameters()]).sum()

    def keep_each_fourth(self) -> None:
        for number, name in enumerate(list(self._parameters)):
            if number % 4:
                del self._parameters[name]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def places(runtime: Runtime, model: Model) -> set[int]:
    return {runtime.memory.addresses.span_places(v)[0] for v in model.parameters()}


def step(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model().backward()
    optimizer.step()


def test_small_rests_share_a_chunk_after_the_first_step(runtime: Runtime) -> None:
    model = Model(16)
    model()
    model.keep_each_fourth()
    vectors = list(model.parameters())
    values = [vector.detach().clone() for vector in vectors]
    assert len(places(runtime, model)) == 4
    step(model)
    assert len(places(runtime, model)) == 1
    assert runtime.memory.arenas.of(Kind.PARAMETER).chunks == 1
    for vector, value, same in zip(model.parameters(), values, vectors, strict=True):
        assert vector is same
        assert torch.equal(vector, value)


def test_what_others_see_stays(runtime: Runtime) -> None:
    model = Model(16)
    model()
    model.keep_each_fourth()
    first = next(model.parameters())
    view = first.detach()
    step(model)
    with torch.no_grad():
        first.fill_(5)
    assert view.eq(5).all()
    assert len(places(runtime, model)) == 2


def test_without_room_for_another_chunk_they_stay(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(16)
    model()
    model.keep_each_fourth()
    arena = runtime.memory.arenas.of(Kind.PARAMETER)

    def full(_source: torch.Tensor) -> torch.Tensor:
        raise ResourceExhausted("no chunk is left")

    monkeypatch.setattr(arena, "like_storage_of", full)
    step(model)
    assert len(places(runtime, model)) == 4


def test_full_chunks_and_later_steps_move_nothing(runtime: Runtime) -> None:
    model = Model(8)
    model()
    before = [vector.data_ptr() for vector in model.parameters()]
    step(model)
    model.keep_each_fourth()
    step(model)
    assert [vector.data_ptr() for vector in model.parameters()] == before[::4]
