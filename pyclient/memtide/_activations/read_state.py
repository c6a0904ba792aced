"""The variables that a block reads in its forward pass, which the script may set before backward.

A recomputation is to find what the forward pass found: attributes of modules (a flag that chooses
an adapter, training or not), their parameters and children, globals. Variables that refer to
something else since are set back while the block runs again. Objects that were changed in place
cannot be; that they were is seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from memtide._activations.marks import attributes_of, mark

Places = Sequence[tuple[Mapping[str, Any], str]]  # Namespaces, and a name in each.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_ABSENT = object()


class ReadState:
    """The variables of one moment."""

    def __init__(self, block: nn.Module, outside: Places = ()) -> None:
        """Takes them now. `outside`: those that the block's code names. Unseen: one changes by its
        use."""
        self._values: list[tuple[MutableMapping[str, Any], str, Any]] = []
        self._fixed: list[tuple[Mapping[str, Any], str, Any]] = []  # A class has them.
        self._attributes: list[Any] = []
        for module in block.modules():
            own = {**attributes_of(module), "training": module.training}
            self._attributes += own.values()
            self._values += [(vars(module), name, value) for name, value in own.items()]
            held: Any
            for held in (module._parameters, module._buffers, module._modules):
                self._values += [(held, name, value) for name, value in held.items()]
        for space, name in outside:
            value = space.get(name, _ABSENT)
            self._attributes.append(value)
            if isinstance(space, MutableMapping):
                self._values.append((space, name, value))
            else:
                self._fixed.append((space, name, value))
        self._marks = [mark(value, 2) for value in self._attributes]

    @contextlib.contextmanager
    def restored(self) -> Iterator[bool]:
        """In the block, variables refer to what they did. Whether all is as it was: nothing was
        changed in place, and no variable of a class refers to something else."""
        later = [
            (space, name, now)
            for space, name, value in self._values
            if (now := space.get(name, _ABSENT)) is not value
        ]
        for space, name, value in self._values if later else ():
            _set(space, name, value)
        try:
            yield self._marks == [mark(value, 2) for value in self._attributes] and all(
                space.get(name, _ABSENT) is value for space, name, value in self._fixed
            )
        finally:
            for space, name, now in later:
                _set(space, name, now)


@contextlib.contextmanager
def without_new_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hooks that a second run sets on tensors from outside of it are taken off: they are there
    since the first run."""
    before = [(t, name, set(getattr(t, name, None) or ())) for t in tensors for name in _HOOKS]
    try:
        yield
    finally:
        for tensor, name, known in before:
            hooks = getattr(tensor, name, None) or {}
            for key in set(hooks) - known:
                del hooks[key]


def content_sums(block: nn.Module) -> list[int]:
    """A number for each parameter's content, but for those of classes of a library's. Writes
    through `.data` count no version."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    with torch.no_grad():
        return [
            int(p.detach().view(integers[p.element_size()]).sum(dtype=torch.int64))
            for p in block.parameters()
            if type(p) is nn.Parameter
            and p.layout is torch.strided
            and p.element_size() in integers
            and not (p.is_quantized or p.is_meta)
        ]


def _set(space: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        space.pop(name, None)
    else:
        space[name] = value
