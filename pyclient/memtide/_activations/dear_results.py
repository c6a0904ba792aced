"""Results within a recomputed block that are kept, because to recompute them is dear.

These are what fused attention kernels return. They go through memtide's saved-tensor hooks like
anything that autograd saves, so they are kept or moved. The recomputation gets them in the place of
running the kernel again.

torch.utils.checkpoint has such a thing, too, but gives each result once, so that a second backward
pass fails; it holds them past all hooks; and it raises if one was changed in place. Here, a result
that the block itself changes is computed again. A kernel that draws random numbers leaves the
generators, when it is skipped, as it left them in forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._activations.random_states import RandomStates

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]
HookPair = tuple[Pack, Unpack]

_NAMES = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "_cudnn_attention_forward",
)
# The math variant of attention is no single operation: backward needs all of its intermediate
# results, so there is nothing to be gained from its output.
DEAR: set[Any] = {
    getattr(torch.ops.aten, name).default for name in _NAMES if hasattr(torch.ops.aten, name)
}
# The autograd nodes of these, by name.
DEAR_NODES = frozenset(
    "".join(word.capitalize() for word in name.split("_")) + "Backward0" for name in _NAMES
)


class DearResults:
    """The dear results of one call of a block. Belongs to the call's graph."""

    def __init__(self, hooks: HookPair | None) -> None:
        """`hooks`: memtide's saved-tensor hooks, if this thread has them."""
        self._hooks = hooks
        self.results: list[_Result] = []

    def contexts(self) -> tuple[TorchDispatchMode, TorchDispatchMode]:
        """For the forward pass, and for each recomputation of it."""
        return _Keeping(self), _Giving(self)

    def end_forward(self) -> None:
        """Saves what the block has not changed since."""
        for result in self.results:
            result.save(self._hooks)


class _Result:
    """The result of one operation."""

    def __init__(self, func: Any, output: Any) -> None:
        self.func = func
        self._is_tuple = isinstance(output, tuple | list)
        items = output if self._is_tuple else (output,)
        # A detached tensor shares the version counter, and does not refer to the graph.
        self._items: list[Any] | None = [_detached(item) for item in items]
        self._versions = [_version(item) for item in self._items]  # None: it is no tensor.
        self._unpack: Unpack | None = None
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        device = next(item.device for item in items if isinstance(item, torch.Tensor))
        self._random = RandomStates(device) if seeded else None

    def save(self, hooks: HookPair | None) -> None:
        """At the end of the block's forward pass."""
        assert self._items is not None
        if [_version(item) for item in self._items] != self._versions:
            self._items = None
        elif hooks is not None:
            pack, self._unpack = hooks
            self._items = [pack(i) if isinstance(i, torch.Tensor) else i for i in self._items]

    @property
    def is_kept(self) -> bool:
        """Whether it can be given: the block did not change it."""
        return self._items is not None

    def give(self) -> Any:
        """The operation's result, as new tensors over the same bytes. REQUIRES: `is_kept`."""
        assert self._items is not None
        if self._random is not None:
            self._random.restore()
        items = []
        for item, version in zip(self._items, self._versions, strict=True):
            if version is not None and self._unpack is not None:
                item = self._unpack(item)
            items.append(_detached(item))
        return tuple(items) if self._is_tuple else items[0]


class _Keeping(TorchDispatchMode):
    def __init__(self, owner: DearResults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in DEAR:
            self._owner.results.append(_Result(func, output))
        return output

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._owner.end_forward()


class _Giving(TorchDispatchMode):
    def __init__(self, owner: DearResults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner
        self._next = 0

    def __enter__(self) -> Any:
        self._next = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DEAR and self._next < len(self._owner.results):
            result = self._owner.results[self._next]
            self._next += 1
            if result.func is func and result.is_kept:
                return result.give()
        return func(*args, **(kwargs or {}))


def _detached(item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    # Below autograd, where modes run, a detached tensor has a version counter of its own otherwise.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return item.detach()


def _version(item: Any) -> int | None:
    return item._version if isinstance(item, torch.Tensor) else None
