"""Ranks that step by themselves compare their parameters seldom, and one that differs is named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from memtide._optimizer_step import rank_values
from memtide._optimizer_step.rank_values import OptimizerValues, RankValues
from memtide._util.step_phase import Step


class Store:
    """A store of two ranks in this process, that counts what is in it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.broken = False
        self.set_at: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        self._use()
        self.values[key] = value
        self.set_at.append(key)

    def get(self, key: str) -> bytes:
        self._use()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._use()
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> None:
        self._use()
        del self.values[key]

    def _use(self) -> None:
        if self.broken:
            raise dist.DistNetworkError("the peer has closed the connection")


class Ranks:
    """Two ranks with the same parameters, `w0` to `w2`."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.store = Store()
        self.parameters = [[torch.ones(4, dtype=dtype) for _ in range(3)] for _ in range(2)]
        self.values = [
            OptimizerValues(self.store, "values", rank, self._name)  # type: ignore[arg-type]
            for rank in range(2)
        ]
        self.step_number = 0

    def _name(self, address: int) -> str:
        return next(f"w{n}" for n, p in enumerate(self.parameters[1]) if p.data_ptr() == address)

    def step(self, *, first: int = 0, change: float = 0.5) -> None:
        """Both ranks step, `first` before the other one."""
        self.step_number += 1
        for rank in (first, 1 - first):
            for parameter in self.parameters[rank]:
                parameter.add_(change)
            self.values[rank].after_step(self.parameters[rank])


def _flip(tensor: torch.Tensor, bit: int) -> None:
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])
    bits[1] ^= 1 << bit


Stderr = Callable[[], str]


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Stderr:
    return lambda: capsys.readouterr().err


@pytest.mark.parametrize("first", [0, 1])
def test_equal_ranks_are_compared_in_silence(first: int, stderr: Stderr) -> None:
    ranks = Ranks()
    for _ in range(300):
        ranks.step(first=first)
    at = [int(key.split("/")[-1]) for key in ranks.store.set_at]
    assert at == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert max(later - earlier for earlier, later in pairwise(at)) == 64
    assert len(ranks.store.values) == 1  # The store does not grow.
    assert not stderr()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("bit", [0, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_altered_bit_is_named_once(
    dtype: torch.dtype, bit: int, first: int, stderr: Stderr
) -> None:
    ranks = Ranks(dtype)
    for step in range(1, 40):
        if step == 6:
            _flip(ranks.parameters[1][2], bit)
        ranks.step(first=first, change=0)
    assert stderr() == (
        "memtide: in rank 1, the values of w2 differ from those of rank 0 after step 8, and did "
        "not after step 4: these ranks train different models since, as if one of them had a wrong "
        "gradient (said once)\n"
    )


def test_many_that_differ_are_counted(stderr: Stderr) -> None:
    ranks = Ranks()
    for parameters in ranks.parameters:
        parameters.extend(torch.ones(2) for _ in range(2))
    ranks.step()
    for parameter in ranks.parameters[1]:
        _flip(parameter, 20)
    ranks.step()
    assert "the values of w0, w1, w2 and 2 more differ" in stderr()


def test_new_parameters_were_never_equal(stderr: Stderr) -> None:
    ranks = Ranks()
    ranks.step()
    for rank, parameters in enumerate(ranks.parameters):
        parameters.append(torch.full((2,), float(rank)))
    for _ in range(20):
        ranks.step()
    assert not stderr()


def test_ranks_that_were_never_equal_are_left_alone(stderr: Stderr) -> None:
    ranks = Ranks()
    ranks.parameters[1][0].mul_(3)
    for _ in range(20):
        ranks.step()
    assert not stderr()


def test_ranks_of_other_models_are_left_alone(stderr: Stderr) -> None:
    ranks = Ranks()
    ranks.step()
    del ranks.parameters[1][2]
    for _ in range(20):
        ranks.step()
    assert not stderr()


def test_training_goes_on_without_the_store(stderr: Stderr) -> None:
    ranks = Ranks()
    ranks.step()
    ranks.store.broken = True
    ranks.step()
    ranks.store.broken = False
    for _ in range(20):
        ranks.step()
    assert len(ranks.store.set_at) == 1
    assert not stderr()


def test_a_process_alone_compares_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    # There is no process group.
    RankValues(lambda _: "").after_step(Step(torch.optim.SGD([parameter]), is_first=True))


def test_optimizers_are_compared_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(rank_values, "is_rank", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    values = RankValues(lambda _: "")
    first, second = (torch.optim.SGD([torch.nn.Parameter(torch.ones(n))]) for n in (1, 2))
    for optimizer in (first, second, first):
        values.after_step(Step(optimizer, is_first=False))
    keys = ["memtide/values/0/1", "memtide/values/1/1", "memtide/values/0/2"]
    assert store.set_at == keys


def test_complex_and_sharded_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.ones(2, dtype=torch.complex128)
    assert rank_values._sums([whole]) != rank_values._sums([whole * 2])
    monkeypatch.setattr(rank_values, "is_sharded", lambda _: True)
    assert rank_values._sums([whole]) == [0]
