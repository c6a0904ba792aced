"""Tensors that a module holds without torch's knowledge."""

from __future__ import annotations

import torch
from memtide._memory.held_tensors import in_attributes_of
from torch import nn


class Holder(nn.Module):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


def test_tensors_in_lists_and_dictionaries_are_found_and_long_lists_are_data() -> None:
    tensors = [torch.ones(300) for _ in range(1001)]
    assert list(in_attributes_of(Holder({"a": (tensors[0], [tensors[1]])}))) == tensors[:2]
    assert len(list(in_attributes_of(Holder(tensors[:1000])))) == 1000
    assert not list(in_attributes_of(Holder(tensors)))
