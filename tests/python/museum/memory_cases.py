"""Tensors over memory that torch was handed: its owner goes on using it, and cannot be seen."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from memtide._memory import adoption
from museum import WIDTH, Case, Results, adamw, batch, network, values

_COUNT = WIDTH * WIDTH
_BYTES = 4 * _COUNT
_STEPS = 4

# Two tensors over the same bytes, of which neither knows the other: that of the script's model, and
# the owner of the memory.
Pair = tuple[torch.Tensor, torch.Tensor]


@contextlib.contextmanager
def _file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(_BYTES)
        yield file.name


def _array() -> Pair:
    array = np.zeros(_COUNT, np.float32)
    return torch.from_numpy(array), torch.from_numpy(array)


def _sequence() -> Pair:
    array = np.zeros(_COUNT, np.float32)
    return torch.as_tensor(array), torch.asarray(array)


def _buffer() -> Pair:
    buffer = bytearray(_BYTES)
    return (
        torch.frombuffer(buffer, dtype=torch.float32),
        torch.frombuffer(buffer, dtype=torch.float32),
    )


def _shared_memory() -> Pair:
    shared = mmap.mmap(-1, _BYTES)
    return (
        torch.frombuffer(shared, dtype=torch.float32),
        torch.frombuffer(shared, dtype=torch.float32),
    )


def _mapped_array() -> Pair:
    with _file() as name:
        array = np.memmap(name, np.float32, "r+")
        return torch.from_numpy(array), torch.from_numpy(array)


def _privately_mapped_array() -> Pair:
    with _file() as name:
        array = np.memmap(name, np.float32, "c")
        return torch.from_numpy(array), torch.from_numpy(array)


def _capsule() -> Pair:
    owner = torch.zeros(_COUNT)
    return torch.from_dlpack(owner), owner


def _mapped_storage() -> Pair:
    with _file() as name:
        storages = [torch.UntypedStorage.from_file(name, True, _BYTES) for _ in range(2)]
    one, other = (torch.empty(0).set_(storage[:_BYTES]) for storage in storages)
    return one, other


def _part_of_a_storage() -> Pair:
    storage = torch.UntypedStorage(2 * _BYTES)
    owner = torch.empty(0).set_(storage)[:_COUNT].zero_()
    return torch.empty(0).set_(storage[:_BYTES]), owner


def weights(pair: list[torch.Tensor]) -> Results:
    """An actor reads and clips weights where it has put them."""
    model = network(depth=2)
    with torch.no_grad():
        pair[0].copy_(model[0].weight)
    model[0].weight = torch.nn.Parameter(pair.pop(0))
    return _train(model, adamw(model), *pair)


def gradients(pair: list[torch.Tensor]) -> Results:
    """An optimizer elsewhere reads and scales the gradient."""
    model = network(depth=2)
    model[0].weight.grad = pair.pop(0)
    return _train(model, adamw(model), *pair)


def states(pair: list[torch.Tensor]) -> Results:
    """A moment is where a program keeps it beyond the training."""
    model = network(depth=2)
    optimizer = adamw(model)
    optimizer.state[model[0].weight] = {
        "step": torch.tensor(0.0),
        "exp_avg": pair.pop(0),
        "exp_avg_sq": torch.zeros(WIDTH, WIDTH),
    }
    return _train(model, optimizer, *pair)


def _train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, owner: torch.Tensor
) -> Results:
    results = []
    for _ in range(_STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss = model(batch()).square().mean()
        loss.backward()
        owner.mul_(0.5)
        optimizer.step()
        owner.mul_(0.5)
        results += [loss.detach(), owner.clone()]
    return [*results, *values(model, optimizer)]


def moving_to_chunks(patch: pytest.MonkeyPatch) -> None:
    """A tensor with no other known user moves."""
    patch.setattr(adoption, "is_torchs", lambda _: True)


def _case(train: Callable[[list[torch.Tensor]], Results], way: Callable[[], Pair]) -> Case:
    def trained() -> Results:
        # A tensor of the storage that is no view, so that it is the storage's only user.
        return train(
            [torch.empty(0).set_(each.untyped_storage(), 0, (WIDTH, WIDTH)) for each in way()]
        )

    trained.__name__ = f"{train.__name__}_over{way.__name__}"
    return Case(trained, moving_to_chunks)


CASES = [
    _case(train, way)
    for train in (weights, gradients, states)
    for way in (
        _array,
        _sequence,
        _buffer,
        _shared_memory,
        _mapped_array,
        _privately_mapped_array,
        _capsule,
        _mapped_storage,
        _part_of_a_storage,
    )
]
