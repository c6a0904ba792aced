"""The blocks of torch's allocator, from the operations that make, use and outlive them.

The recorder knows a block by its storage, of which it has a weak reference: it ends with the
storage, when the last tensor, view or autograd node over it is gone. So it never makes a block live
longer, and the operation at which a block dies is known exactly.

Threads: operations may come from any thread. A storage may be destroyed at any moment, in any
thread, also while the recorder's lock is held; so what is done then takes no lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial

import torch

from memtide._trace.allocator import AllocatorRecord, Block, Operation

MOST_OPERATIONS = 500_000
MOST_BLOCKS = 200_000
MOST_USES = 2_000_000


class _Known:
    """A block whose storage was seen."""

    __slots__ = ("birth", "death", "kind", "reference", "size_bytes", "uses")

    def __init__(self, birth: int | None, kind: str | None) -> None:
        self.birth, self.kind = birth, kind
        self.size_bytes = 0
        self.death: int | None = None
        self.uses: list[int] = []
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class BlockRecorder:
    """One record. First it gets to know what is alive, until `begin`, and then it records."""

    def __init__(
        self,
        kind_at: Callable[[int], str | None],
        *,
        most_operations: int = MOST_OPERATIONS,
        most_blocks: int = MOST_BLOCKS,
        most_uses: int = MOST_USES,
    ) -> None:
        """`kind_at`: the kind of the chunk at an address, None: there is no chunk."""
        self._kind_at = kind_at
        self._most_operations, self._most_blocks = most_operations, most_blocks
        self._uses_left = self._most_uses = most_uses
        self._operations: list[Operation] = []
        self._ends: list[int] = []
        self._blocks: list[_Known] = []
        self._live: dict[int, _Known] = {}  # By the address of torch's object for the storage.
        self._unseen: dict[int, _Known] = {}  # In chunks, by address, until an operation has it.
        self._uses_left_out = self._blocks_left_out = self._bytes_left_out = 0
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more operation, as in a script that never steps."""
        return len(self._operations) >= self._most_operations

    def begin(self, in_chunks: Iterable[tuple[int, int]] = ()) -> None:
        """A block that is alive now was there before the record, which begins with the next
        operation. `in_chunks`: the [start, end) addresses of all that lies in chunks: no operation
        uses what is stepped in parts, beside training."""
        with self._lock:
            self._blocks = [block for block in self._blocks if block.death is None]
            references = [block.reference for block in self._blocks if block.reference is not None]
            known = {s.data_ptr() for reference in references if (s := reference()) is not None}
            for start, end in in_chunks:
                if start not in known and len(self._blocks) < self._most_blocks:
                    block = self._unseen[start] = _Known(None, self._kind_at(start))
                    block.size_bytes = end - start
                    self._blocks.append(block)
            for block in self._blocks:
                block.birth = None
                block.uses.clear()
            self._operations.clear()
            self._ends.clear()
            self._uses_left = self._most_uses
            self._uses_left_out = self._blocks_left_out = self._bytes_left_out = 0

    def end_iteration(self) -> None:
        """The operations since the last end are one iteration."""
        with self._lock:
            self._ends.append(len(self._operations))

    def operation(self, name: str, phase: str, arguments: list[torch.Tensor]) -> int:
        """An operation begins, with these tensors, all of which have storages. Returns its number.
        REQUIRES: not `is_full`."""
        with self._lock:
            number = len(self._operations)
            self._operations.append(Operation(name, phase))
            for block in self._known(arguments, number):
                self._use(block, number)
            return number

    def results(
        self, number: int, results: list[torch.Tensor], arguments: list[torch.Tensor]
    ) -> None:
        """The operation with this number has returned `results`, of `arguments`."""
        of_arguments = {tensor.untyped_storage()._cdata for tensor in arguments}
        new = [t for t in results if t.untyped_storage()._cdata not in of_arguments]
        with self._lock:
            self._known(new, number, counts=True)

    def finish(self) -> AllocatorRecord:
        """The record until now. Blocks that are alive have no death."""
        with self._lock:
            blocks = tuple(
                Block(each.size_bytes, each.birth, each.death, tuple(each.uses), each.kind)
                for each in self._blocks
                if each.death is None or each.death >= 0  # Else before the first operation.
            )
            return AllocatorRecord(
                tuple(self._operations),
                tuple(self._ends),
                blocks,
                self._blocks_left_out,
                self._bytes_left_out,
                self._uses_left_out,
            )

    def _known(
        self, tensors: list[torch.Tensor], number: int, *, counts: bool = False
    ) -> list[_Known]:
        """The blocks under these tensors, each once; those that were not known are born now.
        `counts`: what there is no room for is counted as left out."""
        found: dict[int, _Known] = {}
        for storage in (tensor.untyped_storage() for tensor in tensors):
            if storage._cdata in found or not storage.nbytes():
                continue
            block = self._live.get(storage._cdata)
            if block is None and len(self._blocks) < self._most_blocks:
                block = self._born(storage, number)
            if block is not None:
                # Torch may enlarge a storage, as for an operation's `out`.
                block.size_bytes = max(block.size_bytes, storage.nbytes())
                found[storage._cdata] = block
            elif counts:
                self._blocks_left_out += 1
                self._bytes_left_out += storage.nbytes()
        return list(found.values())

    def _born(self, storage: torch.UntypedStorage, number: int) -> _Known:
        block = self._unseen.pop(storage.data_ptr(), None)
        if block is None:
            block = _Known(number, self._kind_at(storage.data_ptr()))
            self._blocks.append(block)
        key = storage._cdata
        block.reference = weakref.ref(storage, partial(self._dies, key, block))
        self._live[key] = block
        return block

    def _dies(self, key: int, block: _Known, _reference: object) -> None:
        block.death = len(self._operations) - 1
        block.reference = None
        self._live.pop(key, None)

    def _use(self, block: _Known, number: int) -> None:
        if self._uses_left:
            self._uses_left -= 1
            block.uses.append(number)
        else:
            self._uses_left_out += 1
