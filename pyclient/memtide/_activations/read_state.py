"""The variables that a block reads in its forward pass, which the script may set before backward.

A recomputation is to find what the forward pass found: attributes of modules (a flag that chooses
an adapter, training or not), their parameters, children and hooks, globals. Variables that refer to
something else since are set back while the block runs again. Objects that were changed in place
cannot be; that they were is seen, as far as marks of a bounded size show it.
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memtide._activations.marks import Marks, attributes_of

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# Dictionaries of torch's in a module.
_HELD = ("_parameters", "_buffers", "_modules")
_HELD_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Torch reads these of each module.
_ALWAYS = frozenset(("training", "forward"))
_MOST_ITEMS = 32  # In a mark, of a container.
_SLICE = 2**18  # Elements that are summed at once.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ABSENT = object()
_GONE = object()


@dataclass(frozen=True)
class Reads:
    """The names in the code of a block, as one run of it has shown."""

    names: frozenset[str] = frozenset()  # Attributes of modules are among them.
    any_name: bool = False  # It computes names of attributes.
    outside: Sequence[tuple[Mapping[str, Any], str]] = ()  # Namespaces, and a name in each.


class ReadState:
    """The variables of one moment."""

    def __init__(self, modules: Iterator[nn.Module], reads: Reads) -> None:
        """Takes them now, of the modules of a block. Unseen: one changes by its use."""
        self._values: list[tuple[MutableMapping[str, Any], str, Any]] = []
        self._fixed: list[tuple[Mapping[str, Any], str, Any]] = []  # A class has them.
        self._held: list[tuple[Any, dict[Any, Any]]] = []
        for module in {id(module): module for module in modules}.values():
            own = vars(module)
            is_torch_s = type(module).__module__.startswith("torch.")
            names = {*attributes_of(module)} if is_torch_s or reads.any_name else reads.names
            for name in names | _ALWAYS:
                self._values.append((own, name, _kept(own.get(name, _ABSENT))))
            held = (own[name] for name in (*_HELD, *_HELD_HOOKS) if name in own)
            self._held += [(each, dict(each)) for each in held]
        for space, name in reads.outside:
            value = _kept(space.get(name, _ABSENT))
            if isinstance(space, MutableMapping):
                self._values.append((space, name, value))
            else:
                self._fixed.append((space, name, value))
        self._marks = self._marks_now()

    @contextlib.contextmanager
    def restored(self) -> Iterator[bool]:
        """In the block, variables refer to what they did. Whether all is as it was: nothing was
        changed in place or is gone, and no variable of a class refers to something else."""
        later = [
            (space, name, space.get(name, _ABSENT), value)
            for space, name, holder in self._values
            if (value := _value(holder)) is not space.get(name, _ABSENT)
        ]
        later_held = [
            (held, dict(held), then) for held, then in self._held if not _same(held, then)
        ]
        for space, name, _, value in later:
            if value is not _GONE:
                _set(space, name, value)
        for held, _, then in later_held:
            _replace(held, then)
        try:
            yield (
                all(value is not _GONE for *_, value in later)
                and all(
                    _value(holder) is space.get(name, _ABSENT)
                    for space, name, holder in self._fixed
                )
                and self._marks == self._marks_now()
            )
        finally:
            for held, now, _ in later_held:
                _replace(held, now)
            for space, name, now, _ in later:
                _set(space, name, now)

    def content_sums(self) -> list[int]:
        """A number for the content of each parameter, buffer and tensor in an attribute, but for
        those of classes of a library's: writes through `.data` count no version."""
        held = [each for then in self._held for each in then[1].values()]
        values = [*held, *(_value(holder) for *_, holder in self._values)]
        plain = {id(each): each for each in values if type(each) in (torch.Tensor, nn.Parameter)}
        return [_content_sum(tensor) for tensor in plain.values()]

    def _marks_now(self) -> list[Any]:
        # Their size is bounded, so that each call of a block can afford them.
        marks = Marks(_MOST_ITEMS, contents=False)
        return [marks.of(_value(holder)) for *_, holder in (*self._values, *self._fixed)]


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


def _kept(value: Any) -> Any:
    """A graph does not live on in a variable that the script sets anew."""
    is_result = isinstance(value, torch.Tensor) and value.grad_fn is not None
    return weakref.ref(value) if is_result else value


def _value(holder: Any) -> Any:
    if isinstance(holder, weakref.ref):
        value = holder()
        return _GONE if value is None else value
    return holder


def _content_sum(tensor: torch.Tensor) -> int:
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_meta
        or not tensor.is_contiguous()
        or tensor.element_size() not in _INTEGERS
    ):
        return 0
    with torch.no_grad():
        flat = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
        if tensor.is_cpu:
            return zlib.crc32(flat.numpy().data)
        return sum(int(part.sum(dtype=torch.int64)) for part in flat.split(_SLICE))


def _same(held: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    return len(held) == len(then) and all(
        held.get(key, _ABSENT) is value for key, value in then.items()
    )


def _replace(held: MutableMapping[Any, Any], by: Mapping[Any, Any]) -> None:
    held.clear()
    held.update(by)


def _set(space: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        space.pop(name, None)
    else:
        space[name] = value
