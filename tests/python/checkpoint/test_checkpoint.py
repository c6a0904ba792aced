"""A checkpoint holds the tensors' content at its call, whatever training does meanwhile."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memtide
import pytest
import torch
from fake_client import FakeClient
from memtide._checkpoint.safetensors_file import Checkpoint, blocks_of
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import ResourceExhausted
from torch import nn

_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, as other readers find them: the header's length, the
    header, the bytes."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert header.pop("__metadata__")["format"] == "pt"
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        flat = torch.frombuffer(
            bytearray(content[8 + size + start : 8 + size + end]), dtype=_TYPES[entry["dtype"]]
        )
        tensors[name] = flat.view(entry["shape"])
    return tensors


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 24)).pow(2).sum().backward()
        optimizer.step()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 60), nn.BatchNorm1d(60), nn.Linear(60, 200))


def copies(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.state.{index}.{name}": t.clone() for name, t in state.items()}
    return tensors


def assert_holds(path: Path, expected: dict[str, torch.Tensor]) -> None:
    tensors = load(path)
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


class Gate:
    """Blocks the writing of checkpoints until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        write = Checkpoint.write

        def waiting(checkpoint: Checkpoint, read: object) -> None:
            assert self.opened.wait(60)
            write(checkpoint, read)

        monkeypatch.setattr(Checkpoint, "write", waiting)

    def open_when_awaited(self, monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
        """Opens the gate as soon as a thread waits for a checkpoint to be written."""
        pending = runtime.offloaded.checkpoints
        wait = pending.wait

        def opening() -> bool:
            self.opened.set()
            return wait()

        monkeypatch.setattr(pending, "wait", opening)


def test_training_goes_on_while_a_checkpoint_is_written(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    expected = copies(model, optimizer)
    gate = Gate(monkeypatch)
    checkpoint = memtide.checkpoint(tmp_path / "a.safetensors", model, optimizer)
    chunks = len(runtime.client.kinds)
    train(model, optimizer, 3)
    assert runtime.offloaded.parts.steps == 5
    assert not checkpoint.done
    assert checkpoint.written_bytes == 0
    assert not (tmp_path / "a.safetensors").exists()
    assert len(runtime.client.kinds) > chunks
    gate.opened.set()
    assert checkpoint.wait(60)
    assert checkpoint.written_bytes == checkpoint.total_bytes
    assert_holds(checkpoint.path, expected)
    runtime.offloaded.checkpoints.wait()
    assert (
        len(runtime.client.kinds) <= chunks + 2
    )  # The shadow chunks that held the checkpoint are freed.


def test_a_step_that_needs_the_room_waits(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, 2)
    expected = copies(model, optimizer)
    gate = Gate(monkeypatch)
    checkpoint = memtide.checkpoint(tmp_path / "a.safetensors", model, optimizer)
    train(model, optimizer, 1)
    shadows_of = runtime.offloaded.parts.shadows.of
    tries = []

    def of(kinds: dict) -> dict:
        tries.append(checkpoint.done)
        if not checkpoint.done:
            gate.opened.set()
            raise ResourceExhausted("full")
        return shadows_of(kinds)

    monkeypatch.setattr(runtime.offloaded.parts.shadows, "of", of)
    runtime.offloaded.speculative.allowed = False  # Its attempts would be tries, too.
    train(model, optimizer, 1)
    assert tries == [False, True]
    assert runtime.offloaded.parts.steps == 4
    assert_holds(checkpoint.path, expected)


@pytest.mark.parametrize("later", [torch.optim.SGD, torch.optim.RMSprop])
def test_what_a_step_did_not_change_is_written_before_a_later_one_does(
    later: Any, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), later(model[2].parameters())]
    runtime.offloaded.always = True
    train(model, optimizers[0], 2)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gate = Gate(monkeypatch)
    checkpoint = memtide.checkpoint(tmp_path / "a.safetensors", model)
    train(model, optimizers[0], 1)
    assert not checkpoint.done
    gate.open_when_awaited(monkeypatch, runtime)
    train(model, optimizers[1], 1)
    gate.opened.set()  # In case no thread has waited.
    assert checkpoint.wait(60)
    assert_holds(checkpoint.path, expected)
    assert not torch.equal(model[2].weight, expected["2.weight"])


def begin_checkpoint(
    runtime: Runtime, path: Path
) -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, torch.Tensor], Checkpoint]:
    """A model that the daemon has stepped twice, its optimizer, the content that its checkpoint
    must have, and this checkpoint, which is not written yet."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime.offloaded.always = True
    train(model, optimizer, 2)
    expected = copies(model, optimizer)
    checkpoint = memtide.checkpoint(path, model, optimizer)
    assert not checkpoint.done
    return model, optimizer, expected, checkpoint


def test_a_checkpoint_is_written_before_a_step_that_fits_again(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, expected, checkpoint = begin_checkpoint(runtime, tmp_path / "a.safetensors")
    runtime.offloaded.always = False
    monkeypatch.setattr(runtime.memory.pressure, "overflows", lambda: False)
    train(model, optimizer, 1)
    assert runtime.offloaded.parts.steps == 2
    assert checkpoint.done
    assert_holds(checkpoint.path, expected)


def test_where_steps_are_made_here_the_file_is_there_at_once(tmp_path: Path) -> None:
    def work(name: str) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimizer, 2)
        expected = copies(model, optimizer)
        checkpoint = memtide.checkpoint(tmp_path / name, model, optimizer)
        assert checkpoint.done
        assert_holds(checkpoint.path, expected)

    work("plain")
    runtimes.start(FakeClient(), Observer(), adopt_everything=True).offloaded.allowed = False
    try:
        work("exact")
    finally:
        runtimes.stop()


def test_a_model_may_end_before_its_checkpoint_is_written(runtime: Runtime, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime.offloaded.always = True
    train(model, optimizer, 2)
    expected = copies(model, optimizer)
    checkpoint = memtide.checkpoint(tmp_path / "last", model, optimizer)
    del model, optimizer
    gc.collect()
    runtime.memory.pressure.trim_all()
    runtimes.stop()
    assert_holds(checkpoint.path, expected)
    runtime.memory.pressure.trim_all()
    assert runtime.memory.arenas.chunks() == 0


def test_a_script_that_ends_before_another_step_has_its_checkpoint(
    runtime: Runtime, tmp_path: Path
) -> None:
    model, optimizer, expected, checkpoint = begin_checkpoint(runtime, tmp_path / "last")
    runtimes.stop()
    assert checkpoint.done
    assert_holds(checkpoint.path, expected)


def test_who_waits_before_another_step_has_the_file(runtime: Runtime, tmp_path: Path) -> None:
    model, optimizer, expected, checkpoint = begin_checkpoint(runtime, tmp_path / "a")
    assert not checkpoint.wait(timeout_s=0)
    other = threading.Thread(target=checkpoint.wait)
    other.start()
    other.join(0.2)
    assert other.is_alive(), "what is not the thread that trains waits for its next step"
    assert checkpoint.wait(timeout_s=60)
    other.join(60)
    train(model, optimizer, 1)
    assert_holds(checkpoint.path, expected)


def test_what_was_written_where_it_is_stays_where_it_is(runtime: Runtime, tmp_path: Path) -> None:
    model = network()
    live = runtime.memory.arenas.storages.live()
    for turn in range(2):
        memtide.checkpoint(tmp_path / str(turn), model)
        assert runtime.memory.arenas.storages.live() == live
    del model
    gc.collect()
    assert runtime.memory.arenas.storages.live() == []
    runtime.memory.pressure.trim()
    assert runtime.memory.arenas.chunks() == 0


def test_a_file_that_cannot_be_written_raises_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        memtide.checkpoint(tmp_path / "none" / "a", network())
    with pytest.raises(NotADirectoryError):
        memtide.checkpoint(Path("/dev/null/a"), network())
    model = nn.Linear(2, 2).to(torch.complex64)
    with pytest.raises(ValueError, match="weight is torch.complex64"):
        memtide.checkpoint(tmp_path / "a", model)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_more_than_the_file(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime.offloaded.always = True
    train(model, optimizer, 2)
    checkpoint = memtide.checkpoint(tmp_path / "a", model)
    before = model[0].weight.detach().clone()

    def interrupted(_file: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_write_header", interrupted)
    runtime.offloaded.always = False
    monkeypatch.setattr(runtime.memory.pressure, "overflows", lambda: False)
    with pytest.raises(KeyboardInterrupt):  # Raised by the step that writes the checkpoint first.
        train(model, optimizer, 1)
    assert checkpoint.done
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(model[0].weight, before)


def test_blocks_stay_within_chunks() -> None:
    assert list(blocks_of(4000, 200, 4096)) == [(4000, 96), (4096, 104)]
    assert list(blocks_of(0, 20 * 2**20, 2**40)) == [
        (0, 8 * 2**20),
        (8 * 2**20, 8 * 2**20),
        (16 * 2**20, 4 * 2**20),
    ]
