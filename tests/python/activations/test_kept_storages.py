"""Kept storages leave in the order in which they were saved, as soon as nothing else uses them."""

from __future__ import annotations

import torch
from memtide._activations.kept_storages import KeptStorages
from memtide._activations.plan import Choice
from memtide._activations.saved_tensor import SavedTensor

_BYTES = 4096


class Saved:
    """Tensors that autograd has saved, and that the script uses, too."""

    def __init__(self, storages: KeptStorages, count: int) -> None:
        self.tensors = [torch.zeros(_BYTES // 4) for _ in range(count)]
        self._saved = [SavedTensor(tensor) for tensor in self.tensors]
        for saved in self._saved:
            storages.add(saved)

    @property
    def moved(self) -> list[bool]:
        """Which of them are elsewhere."""
        return [saved.is_moved for saved in self._saved]


def move(tensor: torch.Tensor, _choice: Choice) -> torch.UntypedStorage:
    return tensor.clone().untyped_storage()


def test_what_the_script_uses_leaves_once_it_does_not_any_more() -> None:
    storages = KeptStorages()
    saved = Saved(storages, 3)
    saved.tensors.pop(0)
    storages.move_until(0, move)
    assert saved.moved == [True, False, False]
    saved.tensors.clear()
    storages.move_until(_BYTES, move)
    assert saved.moved == [True, True, False]
    assert storages.bytes == _BYTES


def test_what_has_ended_while_it_waited_delays_nothing_else() -> None:
    storages = KeptStorages()
    earlier = Saved(storages, 20)
    storages.move_until(0, move)
    del earlier
    saved = Saved(storages, 4)
    storages.move_until(0, move)
    saved.tensors.clear()
    storages.move_until(0, move)
    assert saved.moved == [True] * 4
