"""The storages under saved tensors that are in the script's own memory, oldest first.

Several saved tensors may lie in one storage (a matrix and its transposed view, the parts of one
projection). The storage moves to chunks as a whole, and each tensor stays a view of it. What
distinguishes tensors is their storage, offset, shape and strides, never an address alone.

A storage that somebody else uses, the script or an operation that is not done, would not be freed
by a move. It stays where it is, and is tried again later.

Thread safety: safe to use from any thread. A saved tensor may be destroyed at any moment.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

import torch

from memtide._activations.saved_tensor import SavedTensor
from memtide._memory.tensor_manager import USERS_OF_ONE_TENSOR, storage_users

Moved = Callable[[torch.Tensor], torch.UntypedStorage | None]
_MOST_TRIES = 4  # Storages that had other users are tried again, this many at a time.
_FEW = 64


class KeptStorage:
    """One storage with saved tensors over it. They own this object; it does not own them."""

    __slots__ = (
        *("__weakref__", "_changes", "_most", "_saved"),
        *("is_leaving", "is_moved", "number", "size_bytes"),
    )

    def __init__(self, number: int, size_bytes: int, changes: deque[int]) -> None:
        self.number = number  # In the order in which storages were first saved.
        self.size_bytes = size_bytes
        self.is_moved = False
        self.is_leaving = False  # By the script's choice, as soon as it can.
        self._saved: list[weakref.ref[SavedTensor]] = []
        self._most = _FEW  # As many references are kept before those to dead tensors are dropped.
        self._changes = changes
        changes.append(size_bytes)

    def add(self, saved: SavedTensor) -> None:
        """Another tensor over this storage was saved. A mask may be saved in every iteration."""
        self._saved.append(weakref.ref(saved))
        if len(self._saved) > self._most:
            self._saved = [each for each in self._saved if each() is not None]
            self._most = 2 * len(self._saved) + _FEW

    def live(self) -> list[SavedTensor]:
        """The saved tensors that autograd still has."""
        return [saved for each in self._saved if (saved := each()) is not None]

    def leave(self) -> None:
        """The bytes are not in the script's own memory any more."""
        self.is_moved = True
        self._changes.append(-self.size_bytes)

    def __del__(self) -> None:
        if not self.is_moved:
            self._changes.append(-self.size_bytes)


class KeptStorages:
    """All kept storages of a process."""

    def __init__(self) -> None:
        self._by_address: weakref.WeakValueDictionary[int, KeptStorage]
        self._by_address = weakref.WeakValueDictionary()
        self._order: deque[weakref.ref[KeptStorage]] = deque()
        self._waiting: deque[weakref.ref[KeptStorage]] = deque()  # They had other users.
        self._leaving: deque[weakref.ref[KeptStorage]] = deque()
        # Bytes that came (positive) and went. Destructors cannot take a lock.
        self._changes: deque[int] = deque()
        self._kept_bytes = 0
        self._count = 0
        self._lock = threading.RLock()

    @property
    def bytes(self) -> int:
        """Bytes of kept storages now, each counted once."""
        with self._lock:
            while self._changes:
                self._kept_bytes += self._changes.popleft()
            return self._kept_bytes

    def add(self, saved: SavedTensor, *, leaves: bool = False) -> KeptStorage:
        """Notes a tensor that was saved. Returns the storage under it. `leaves`: it is for
        `move_leaving`."""
        storage = saved.tensor.untyped_storage()
        with self._lock:
            entry = self._by_address.get(storage._cdata)
            if entry is None:
                entry = KeptStorage(self._count, storage.nbytes(), self._changes)
                self._count += 1
                self._by_address[storage._cdata] = entry
                self._order.append(weakref.ref(entry))
                self._drop_dead_references()
            saved.storage = entry
            entry.add(saved)
            if leaves and not entry.is_leaving:
                entry.is_leaving = True
                self._leaving.append(weakref.ref(entry))
            return entry

    def move_leaving(self, move: Moved) -> None:
        """Tries some of the storages that are to leave in any case; `move` as for `move_until`."""
        with self._lock:
            for _ in range(min(_MOST_TRIES, len(self._leaving))):
                if not self._move_next(self._leaving, move, self._leaving):
                    return

    def move_until(self, most_bytes: int, move: Moved) -> None:
        """Moves storages, first what was saved first, until at most `most_bytes` are kept, or all
        that is left cannot be moved now. `move` copies the storage of a tensor and returns the
        copy; None: there is no room."""
        with self._lock:
            for _ in range(min(_MOST_TRIES, len(self._waiting))):
                if self.bytes <= most_bytes:
                    return
                if not self._move_next(self._waiting, move, self._waiting):
                    return
            while self._order and self.bytes > most_bytes:
                if not self._move_next(self._order, move, self._waiting):
                    return

    def move(self, entry: KeptStorage, move: Moved) -> bool:
        """Moves one storage, if only saved tensors use it. False: there is no room for it, or
        it has other users."""
        with self._lock:
            return self._has_no_other_users(entry) and self._move(entry, move)

    def _drop_dead_references(self) -> None:
        queues = (self._order, self._waiting, self._leaving)
        if sum(map(len, queues)) > 6 * len(self._by_address) + _FEW:
            self._order, self._waiting, self._leaving = (
                deque(each for each in queue if each() is not None) for queue in queues
            )

    def _move_next(
        self,
        queue: deque[weakref.ref[KeptStorage]],
        move: Moved,
        waiting: deque[weakref.ref[KeptStorage]],
    ) -> bool:
        """Moves the first one, or puts it into `waiting` if it has other users. False: there is no
        room."""
        reference = queue.popleft()
        entry = reference()
        if entry is None or entry.is_moved:
            return True
        if not self._has_no_other_users(entry):
            waiting.append(reference)
            return True
        if self._move(entry, move):
            return True
        queue.appendleft(reference)
        return False

    def _has_no_other_users(self, entry: KeptStorage) -> bool:
        live = entry.live()
        if not live or entry.is_moved:
            return False
        users = storage_users(live[0].tensor.untyped_storage())
        return users <= USERS_OF_ONE_TENSOR + len(live) - 1

    def _move(self, entry: KeptStorage, move: Moved) -> bool:
        live = entry.live()
        if not live:
            return False
        before = live[0].tensor
        address = before.untyped_storage()._cdata
        after = move(before)
        if after is None:
            return False
        for saved in live:
            saved.replace(after)
        self._by_address.pop(address, None)
        entry.leave()
        return True
