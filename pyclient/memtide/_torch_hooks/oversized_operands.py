"""Operations over tensors that are larger than what can be leased at once.

A kernel that passes over an operand again and again, as blocked matrix products do, brings all of
its chunks from SSD in each pass if they do not fit the lease budget: a weight of 11.3 MiB in a pool
of 8 MiB cost 22.8 GB of reads a step. So in host memory such an operand is copied to ordinary
memory for the operation, in one pass. The bits are the same, because the operation is. Torch itself
needs as much for the weight's gradient.

A lookup of rows, as of an embedding, uses little of its table, but in any order: each row may bring
a chunk that the row before sent away (700 words of a table of 5 chunks in a pool of 4 cost 290 page
faults a step, 4.5 times the least bytes). So rows are looked up in the order of their places.

Other operations are left to page faults: they pass over an operand once.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from memtide._capi.client import Places
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.op_schema import run, touches_none
from memtide._torch_hooks.ordered_lookups import LOOKUPS, look_up
from memtide._torch_hooks.own_mode import OwnMode
from memtide._util.script_modes import without_modes_of_script

_NO_PLACES = Places(())
_NO_BACKWARD = -1
# The packets whose kernels pass over their operands again and again.
_PACKETS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv"),
        *("linear", "linear_backward", "mkldnn_linear", "mkldnn_rnn_layer"),
        *("mkldnn_rnn_layer_backward", "convolution", "convolution_backward"),
        *("convolution_overrideable", "convolution_backward_overrideable"),
        *("mkldnn_convolution", "_slow_conv2d_forward", "_slow_conv2d_backward"),
        *("slow_conv3d_forward", "slow_conv_transpose2d", "slow_conv_transpose3d"),
        *("slow_conv_dilated2d", "slow_conv_dilated3d", "_conv_depthwise2d", "conv_depthwise3d"),
        *("_scaled_dot_product_flash_attention_for_cpu", "grid_sampler_2d"),
    )
    if hasattr(torch.ops.aten, name)
)


class OversizedOperandsMode(OwnMode):
    """Copies oversized operands of the operations of one thread."""

    def __init__(self, memory: ManagedMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._addresses = memory.addresses

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in LOOKUPS and self._is_oversized(args[0]):
            return look_up(func, args)
        if getattr(func, "overloadpacket", None) not in _PACKETS or not self._addresses.here:
            return run(func, args, kwargs)
        if not touches_none(self._addresses, args):
            args = tuple(self._without_oversized(value) for value in args)
        # The tensor that is written, `out`, is a keyword argument, and stays where it is.
        return func(*args, **kwargs)

    def _without_oversized(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._without_oversized(item) for item in value]
        return self._copy_of(value) if self._is_oversized(value) else value

    def _is_oversized(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return False
        return len(self._addresses.element_places(value)) > self._memory.ledger.budget

    @without_modes_of_script()
    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over ordinary memory with the elements and strides of a managed one."""
        memory, ledger = self._memory, self._memory.ledger
        steps = zip(tensor.size(), tensor.stride(), strict=True)
        size_bytes = (sum((n - 1) * step for n, step in steps) + 1) * tensor.itemsize
        source = memory.arenas.storages.bytes_at(tensor.data_ptr(), size_bytes)
        target = torch.empty(size_bytes, dtype=torch.uint8)
        # Half of what may be leased ahead, so that the next half may come meanwhile.
        piece_bytes = max(1, ledger.limit // 2) * memory.addresses.chunk_bytes
        start = 0
        while start < size_bytes:
            first = source.data_ptr() + start
            in_chunk = (first - memory.addresses.base) % memory.addresses.chunk_bytes
            end = min(size_bytes, start + piece_bytes - in_chunk)
            with ledger.using(Places(memory.addresses.places_of(first, end - start)), _NO_PLACES):
                target[start:end].copy_(source[start:end])
            start = end
        layout = torch.empty(0, dtype=tensor.dtype)
        return layout.set_(target.untyped_storage(), 0, tensor.size(), tensor.stride())


class OversizedOperands:
    """Has the mode active in the thread that made this, while a parameter is oversized."""

    def __init__(self, memory: ManagedMemory) -> None:
        self.mode = OversizedOperandsMode(memory)
        self._memory = memory
        self._thread = threading.get_ident()
        self._most_chunks = 0

    def see(self, parameter: torch.Tensor) -> None:
        """Called for each parameter that is in chunks."""
        chunks = len(self._memory.addresses.element_places(parameter))
        self._most_chunks = max(self._most_chunks, chunks)
        self.look()

    def look(self) -> None:
        """Enters or leaves the mode. Called also where the lease budget may have changed."""
        in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
        if threading.get_ident() != self._thread or in_backward:
            return
        wanted = self._most_chunks > self._memory.ledger.budget
        if wanted != (mode_stack.depth_of(self.mode) is not None):
            if wanted:
                mode_stack.put_back(self.mode, 0)
            else:
                mode_stack.take_off(self.mode)

    def close(self) -> None:
        """Leaves the mode."""
        if mode_stack.depth_of(self.mode) is not None:
            mode_stack.take_off(self.mode)
