"""Blocks of torch's allocator are recorded from operations made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memtide._torch_hooks.block_recorder import BlockRecorder
from memtide._torch_hooks.block_recording import BlockRecordingMode
from memtide._trace.allocator import AllocatorRecord, Block


@pytest.fixture
def recorder() -> BlockRecorder:
    return BlockRecorder(lambda _: None)


def recorded(recorder: BlockRecorder, act: Callable[[], object]) -> AllocatorRecord:
    """The record of what `act` does. The result of `act` is alive at its end."""
    with BlockRecordingMode(recorder, lambda: "forward"):  # type: ignore[no-untyped-call]
        left = act()
        record = recorder.finish()
        del left
    return record


def test_a_block_has_its_size_uses_birth_and_the_operation_after_which_it_died(
    recorder: BlockRecorder,
) -> None:
    def act() -> torch.Tensor:
        first = torch.ones(256)  # 0
        second = first * 2  # 1
        third = first + second  # 2
        del second
        torch.ones(3)  # 3: nothing uses it.
        return third * third  # 4

    record = recorded(recorder, act)
    names = [operation.name for operation in record.operations]
    assert names == ["aten::ones", "aten::mul.Tensor", "aten::add.Tensor", "aten::ones"] + names[4:]
    assert len(names) == 5
    assert record.blocks == (
        Block(1024, 0, 4, (1, 2)),
        Block(1024, 1, 2, (2,)),
        Block(1024, 2, 4, (4,)),
        Block(12, 3, 3),
        Block(1024, 4, None),
    )


def test_views_and_operations_in_place_make_no_block(recorder: BlockRecorder) -> None:
    def act() -> torch.Tensor:
        whole = torch.zeros(8, 8)  # 0
        part = whole.view(64)[3:9].unsqueeze(0)
        del whole
        part.add_(1)  # 1
        torch.mul(part, 2, out=part)  # 2
        return part

    record = recorded(recorder, act)
    # The view holds all of the storage.
    assert record.blocks == (Block(256, 0, None, (1, 2)),)
    assert len(record.operations) == 3


def test_what_autograd_saves_lives_until_backward_has_used_it(recorder: BlockRecorder) -> None:
    weight = torch.ones(16, requires_grad=True)

    def act() -> None:
        loss = (weight * 2).exp().sum()
        loss.backward()

    record = recorded(recorder, act)
    names = [operation.name for operation in record.operations]
    saved = next(b for b in record.blocks if b.birth == names.index("aten::exp"))
    last = len(names) - 1 - names[::-1].index("aten::mul.Tensor")
    assert saved.size_bytes == 64
    assert saved.death is not None
    assert saved.death >= last - 1  # The product with it is one of the last two.
    assert {names[use] for use in saved.uses} == {"aten::sum", "aten::mul.Tensor"}


def test_what_was_there_before_the_record_has_no_birth(recorder: BlockRecorder) -> None:
    weight, dead, dies = torch.ones(4), torch.ones(5), torch.ones(6)
    with BlockRecordingMode(recorder, lambda: "step"):  # type: ignore[no-untyped-call]
        weight.add_(1)
        dead.add_(dies.sum())
        del dead
        recorder.end_iteration()
        recorder.begin()
        del dies  # Before the first operation.
        weight.add_(1)
        recorder.end_iteration()
    record = recorder.finish()
    assert record.blocks == (Block(16, None, None, (0,)),)
    assert record.iteration_ends == (1,)
    assert record.operations[0].phase == "step"


def test_what_lies_in_chunks_is_known_though_no_operation_has_it() -> None:
    tensor = torch.ones(16)
    address = tensor.data_ptr()
    recorder = BlockRecorder({address: "parameter", 0: "optimizer state"}.get)
    recorder.begin([(address, address + 64), (0, 4096)])
    recorded(recorder, lambda: tensor.add_(1))
    assert recorder.finish().blocks == (
        Block(64, None, None, (0,), "parameter"),
        Block(4096, None, None, (), "optimizer state"),
    )


def test_what_the_limits_leave_out_is_counted() -> None:
    recorder = BlockRecorder(lambda _: None, most_blocks=1, most_uses=2, most_operations=4)

    def act() -> list[torch.Tensor]:
        tensors = [torch.ones(4), torch.ones(1)]
        tensors[0].add_(tensors[0])
        tensors[0].add_(tensors[1])
        tensors[0].add_(1)  # There is no room for a fifth operation.
        return tensors

    record = recorded(recorder, act)
    assert len(record.operations) == 4
    assert record.blocks == (Block(16, 0, None, (2, 3)),)
    assert (record.blocks_left_out, record.bytes_left_out, record.uses_left_out) == (1, 4, 0)
    recorder = BlockRecorder(lambda _: None, most_uses=1)
    record = recorded(recorder, act)
    assert sum(len(block.uses) for block in record.blocks) == 1
    assert record.uses_left_out == 3
