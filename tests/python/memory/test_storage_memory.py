"""Whose memory a storage is over. The museum has trainings over memory of others."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_client import FakeClient
from memtide._memory import storage_memory
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime

_COUNT = 4096


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def saved(folder: Path) -> Path:
    torch.save(torch.ones(_COUNT), folder / "saved.pt")
    return folder / "saved.pt"


def loaded(folder: Path) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(saved(folder))
    return tensor


def loaded_from_bytes(folder: Path) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(io.BytesIO(saved(folder).read_bytes()))
    return tensor


def loaded_from_a_mapping(folder: Path) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(saved(folder), mmap=True)
    return tensor


def a_part_of_a_private_mapping(folder: Path) -> torch.Tensor:
    """As safetensors.torch.load_file makes it."""
    (folder / "ones").write_bytes(loaded(folder).numpy().tobytes())
    whole = torch.UntypedStorage.from_file(str(folder / "ones"), False, 4 * _COUNT)
    return torch.asarray(whole[: 4 * _COUNT], dtype=torch.uint8).view(torch.float32)


def seen_by_numpy_before(_folder: Path) -> torch.Tensor:
    tensor = torch.ones(_COUNT)
    tensor.numpy()
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        loaded,
        loaded_from_bytes,
        loaded_from_a_mapping,
        a_part_of_a_private_mapping,
        seen_by_numpy_before,
    ],
)
def test_what_has_no_other_owner_moves(
    make: Callable[[Path], torch.Tensor], runtime: Runtime, tmp_path: Path
) -> None:
    parameter = torch.nn.Parameter(make(tmp_path))
    runtime.module_hooks.adopt_parameter(parameter)
    assert runtime.memory.addresses.manages(parameter)
    assert parameter.sum().item() == _COUNT


def test_a_file_that_others_see_stays(runtime: Runtime, tmp_path: Path) -> None:
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        parameter = torch.nn.Parameter(loaded_from_a_mapping(tmp_path))
    runtime.module_hooks.adopt_parameter(parameter)
    assert not runtime.memory.addresses.manages(parameter)


def test_an_array_that_lives_stays(runtime: Runtime) -> None:
    gradient = torch.ones(_COUNT)
    array = gradient.numpy()
    parameter = torch.nn.Parameter(torch.ones(_COUNT), requires_grad=False)
    parameter.data = gradient
    runtime.module_hooks.adopt_parameter(parameter)
    assert not runtime.memory.addresses.manages(parameter)
    array[0] = 2
    assert parameter[0] == 2


def test_one_line_says_that_such_tensors_stay(
    runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    buffers = [bytearray(4 * _COUNT) for _ in range(2)]
    for buffer in buffers:
        parameter = torch.nn.Parameter(torch.frombuffer(buffer, dtype=torch.float32))
        runtime.module_hooks.adopt_parameter(parameter)
    error_text = capfd.readouterr().err
    assert error_text.count("\n") == 1
    assert error_text.startswith("memtide: a tensor of size [4096] stays where it is")


def test_nothing_is_said_of_what_stays_anyhow(
    runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    small = torch.frombuffer(bytearray(64), dtype=torch.float32)
    runtime.module_hooks.adopt_parameter(torch.nn.Parameter(small))
    assert capfd.readouterr().err == ""


def test_where_storages_cannot_be_read_only_what_can_be_resized_moves(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_memory, "_deleters", lambda: None)
    of_file, own = torch.nn.Parameter(loaded(tmp_path)), torch.nn.Parameter(torch.ones(_COUNT))
    for parameter in (of_file, own):
        runtime.module_hooks.adopt_parameter(parameter)
    assert [runtime.memory.addresses.manages(p) for p in (of_file, own)] == [False, True]
