"""References to tensors that do not keep them alive.

torch.utils.swap_tensors refuses tensors that have weak references. So all that memtide notes of a
tensor for later is noted of its `TensorReference`, which has the only weak reference to it.
`swapping` drops that for the moment of a swap: what was noted of a tensor object holds for the
object that it is afterwards, with other bytes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary


class TensorReference:
    """The one reference to a tensor, which lives as long as the tensor."""

    __slots__ = ("__weakref__", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor: weakref.ref[torch.Tensor] | None = weakref.ref(tensor)

    def __call__(self) -> torch.Tensor | None:
        """The tensor; None: it is no more."""
        return None if self._tensor is None else self._tensor()


_references = WeakTensorKeyDictionary()


def reference_to(tensor: torch.Tensor) -> TensorReference:
    """The reference to a tensor. It may be a key in a weakref.WeakKeyDictionary, whose item ends
    with the tensor."""
    reference: TensorReference | None = _references.get(tensor)
    if reference is None:
        reference = _references[tensor] = TensorReference(tensor)
    return reference


def swapping(forget: Callable[[torch.Tensor], None], original: Callable[..., Any]) -> Any:
    """torch.utils.swap_tensors. `forget` is called for each tensor, whose bytes and hooks will be
    another's."""

    @functools.wraps(original)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        for tensor in (t1, t2):
            forget(tensor)
        references = [_references.pop(tensor, None) for tensor in (t1, t2)]
        for reference in references:
            if reference is not None:
                reference._tensor = None
        try:
            original(t1, t2)
        finally:
            for tensor, reference in zip((t1, t2), references, strict=True):
                if reference is not None:
                    reference._tensor = weakref.ref(tensor)
                    _references[tensor] = reference

    return swap_tensors
