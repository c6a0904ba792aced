"""A note that was damaged in any way is read, or refused as lost data: nothing else happens."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import fields
from typing import Any

import pytest
from memtide._resume.step_manifest import (
    SavedOptimizer,
    SavedParameter,
    SavedTensor,
    StepManifest,
    read_manifest,
)
from memtide.errors import DataLoss

_OTHER_VALUES: tuple[Any, ...] = (None, 0, -1, 2**70, 1.5, "", "x", True, [], {}, [[]], {"form": 1})


def whole_note() -> dict[str, Any]:
    tensor = SavedTensor([2, 3], [3, 1], "float32", 4096)
    outside = SavedTensor([1], [1], "float32", content="AACAPw==")
    parameters = [SavedParameter(tensor, {"exp_avg": tensor, "step": outside}, {"lr": 0.1})] * 2
    manifest = StepManifest([1, 2, 3], [SavedOptimizer("AdamW", 7, parameters)])
    note: dict[str, Any] = json.loads(zlib.decompress(manifest.to_bytes(1 << 20)))
    return note


def damage(value: Any, chance: random.Random) -> Any:
    """The value with one thing in it lost, repeated or replaced."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = chance.choice(keys)
        if chance.random() < 0.2:
            del value[key]
        else:
            value[key] = damage(value[key], chance)
        return value
    return chance.choice(_OTHER_VALUES)


def read_or_refuse(written: bytes) -> bool:
    try:
        manifest = read_manifest(written)
    except DataLoss:
        return False
    assert type(manifest.steps) is int
    assert all(type(chunk) is int for chunk in manifest.chunks)
    for optimizer in manifest.optimizers:
        for parameter in optimizer.parameters:
            for tensor in (parameter.parameter, *parameter.states.values()):
                assert all(type(size) is int for size in (*tensor.shape, *tensor.stride))
                assert type(tensor.offset_bytes) is int
                assert isinstance(tensor.dtype, str)
                assert isinstance(tensor.content, str)
    return True


@pytest.mark.parametrize("field", [field.name for field in fields(SavedTensor)])
def test_a_field_of_a_tensor_with_a_value_of_another_kind_is_refused(field: str) -> None:
    note = whole_note()
    assert read_or_refuse(zlib.compress(json.dumps(note).encode()))
    note["optimizers"][0]["parameters"][0]["parameter"][field] = {"form": 1}
    assert not read_or_refuse(zlib.compress(json.dumps(note).encode()))


def test_a_damaged_note_is_read_or_refused() -> None:
    chance = random.Random(25)
    read = 0
    for _ in range(3000):
        note = whole_note()
        for _ in range(chance.randint(1, 3)):
            note = damage(note, chance)
        read += read_or_refuse(zlib.compress(json.dumps(note).encode()))
    assert 0 < read < 3000
    whole = zlib.compress(json.dumps(whole_note()).encode())
    for _ in range(3000):
        broken = bytearray(whole)
        broken[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        read_or_refuse(bytes(broken[: chance.randint(1, len(whole))]))
    assert not read_or_refuse(zlib.compress(b"[" * 100_000))
