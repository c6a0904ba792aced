"""One forward pass of a model on the meta device, and what each of its parts computes and saves.

Nothing is computed: tensors there have shapes and storages, and no content. Attention is made the
fused operation that it is on GPUs, which on the meta device would be several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from memtide_plan.models.modules.rows import Part

_ATTENTION = "_scaled_dot_product"
_WITHOUT_WEIGHTS = ("bmm", "baddbmm")


@dataclass
class Seen:
    """The operations and saved bytes of a part, for a whole batch."""

    matrix_flop: float = 0.0
    pair_flop: float = 0.0  # Operations of products between activations.
    input_bytes: int = 0
    attention_bytes: int = 0
    rest_bytes: int = 0


@dataclass
class _Recording:
    """The pass so far. `current`: the part that computes; it holds all storages that it has seen,
    so that no other one gets the same address."""

    parameters: set[int]
    current: Part
    seen: dict[int, Seen] = field(default_factory=lambda: defaultdict(Seen))
    inputs: set[int] = field(default_factory=set)
    attention: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    held: list[Any] = field(default_factory=list)
    is_causal: bool | None = None  # None: no fused attention was seen.

    def now(self) -> Seen:
        return self.seen[id(self.current)]

    def storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self.held.append(storage)
        return int(storage._cdata)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        key = self.storage(tensor)
        if key in self.parameters or key in self.saved:
            return tensor
        self.saved.add(key)
        size, seen = tensor.untyped_storage().nbytes(), self.now()
        if key in self.inputs:
            seen.input_bytes += size
        elif key in self.attention:
            seen.attention_bytes += size
        else:
            seen.rest_bytes += size
        return tensor


class _Operations(TorchDispatchMode):
    """Counts the operations of products of matrices."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet, recording = func._overloadpacket, self._recording
        if packet.__name__.startswith(_ATTENTION):
            query, key = args[0], args[1]
            pairs = query.numel() // query.shape[-1] * key.shape[-2]
            recording.now().pair_flop += 2 * pairs * (query.shape[-1] + args[2].shape[-1])
            for tensor in tensors_in(result):
                recording.attention.add(recording.storage(tensor))
        elif packet in flop_registry:
            flop = flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            weights = any(
                recording.storage(tensor) in recording.parameters for tensor in tensors_in(args)
            )
            if packet.__name__ in _WITHOUT_WEIGHTS and not weights:
                recording.now().pair_flop += flop
            else:
                recording.now().matrix_flop += flop
        return result


class _FusedAttention(torch.overrides.TorchFunctionMode):
    """Scaled dot product attention as one operation."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        return self._attend(*args, **kwargs)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        del enable_gqa, dropout_p  # The operation has as many heads of keys as there are.
        recording = self._recording
        causal = is_causal or attn_mask is not None
        recording.is_causal = causal or bool(recording.is_causal)
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result: torch.Tensor = attend(query, key, value, 0.0, is_causal, scale=scale)[0]
        return result


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass. `parts`: by the id of a Part; None in `is_causal`: there is no fused
    attention. `output`: what the model has returned."""

    parts: dict[int, Seen]
    is_causal: bool | None
    output: Any


def forward(model: nn.Module, parts: Sequence[Part], call: Callable[[], Any]) -> ForwardPass:
    """Watches `call`, which calls the model with tensors of the meta device. Exceptions of the
    model pass through. REQUIRES: the parameters are on the meta device."""
    stored = {p.untyped_storage()._cdata for p in model.parameters()}
    recording = _Recording(stored, parts[0])
    blocks = {id(part.module): part for part in parts if part.module is not None}
    with ExitStack() as stack:
        for part in blocks.values():
            assert part.module is not None
            enter, leave = _hooks(recording, part, parts[-1])
            for handle in (
                part.module.register_forward_pre_hook(enter, with_kwargs=True),
                part.module.register_forward_hook(leave),
            ):
                stack.callback(handle.remove)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(recording.pack, lambda tensor: tensor)
        )
        stack.enter_context(_FusedAttention(recording))
        stack.enter_context(_Operations(recording))
        output = call()
    return ForwardPass(dict(recording.seen), recording.is_causal, output)


def _hooks(recording: _Recording, part: Part, last: Part) -> tuple[Any, Any]:
    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        del module
        recording.current = part
        # An input of all blocks, such as a mask, has no gradient.
        tensors = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
        recording.inputs = {recording.storage(tensor) for tensor in tensors}
        # Each block saves its own input, also where the block before it saved the same tensor.
        recording.saved -= recording.inputs

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        recording.current, recording.inputs = last, set()

    return enter, leave


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "values") and hasattr(value, "keys"):
        for item in value.values():
            yield from tensors_in(item)
