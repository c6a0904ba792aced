"""The storages under saved tensors that are in the script's own memory, oldest first.

Several saved tensors may lie in one storage (a matrix and its transposed view, the parts of one
projection). The storage moves to chunks as a whole, and each tensor stays a view of it. Tensors are
distinguished by storage, offset, shape and strides, never by an address alone.

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

from memtide._activations.plan import MOVES, Choice
from memtide._activations.recording import SavedStorage
from memtide._activations.saved_tensor import SavedTensor
from memtide._memory.adoption import USERS_OF_ONE_TENSOR, storage_users

Moved = Callable[[torch.Tensor, Choice], torch.UntypedStorage | None]
_MOST_TRIES = 4  # Storages that had other users are tried again, this many at a time.
_FEW = 64


class KeptStorage:
    """One storage with saved tensors over it. They own this object; it does not own them."""

    __slots__ = (
        *("__weakref__", "_changes", "_most", "_saved"),
        *("choice", "is_moved", "number", "record", "size_bytes"),
    )

    def __init__(self, number: int, size_bytes: int, changes: deque[int]) -> None:
        self.number = number  # In the order in which storages were first saved.
        self.size_bytes = size_bytes
        self.is_moved = False
        self.choice = Choice.NONE  # The plan's choice for it.
        self.record: SavedStorage | None = None
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

    def add(self, saved: SavedTensor) -> KeptStorage:
        """Notes a tensor that was saved. Returns the storage under it."""
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
            return entry

    def move_until(self, most_bytes: int, move: Moved) -> None:
        """Moves storages, first what was saved first, until at most `most_bytes` are kept, or all
        that is left cannot be moved now. `move` copies the storage of a tensor and returns the
        copy, whose place the plan may have chosen; None: there is no room."""
        with self._lock:
            for _ in range(_MOST_TRIES):
                self._drop_ended(self._waiting)
                if not self._waiting or self.bytes <= most_bytes:
                    break
                if not self._move_next(self._waiting, move):
                    return
            while self._order and self.bytes > most_bytes:
                if not self._move_next(self._order, move):
                    return

    def choose(self, entry: KeptStorage, choice: Choice) -> None:
        """Notes what the plan says of a storage."""
        if choice in MOVES and entry.choice not in MOVES:
            self._leaving.append(weakref.ref(entry))
        entry.choice = choice

    def move_leaving(self, move: Moved) -> None:
        """Moves the storages that are planned to leave, but for those that have other users: these
        are tried again at the next call."""
        if not self._leaving:
            return
        with self._lock:
            for _ in range(len(self._leaving)):
                reference = self._leaving.popleft()
                entry = reference()
                if entry is None or entry.is_moved or entry.choice not in MOVES:
                    continue
                if not self._has_no_other_users(entry) or not self._move(entry, move):
                    self._leaving.append(reference)

    def _drop_dead_references(self) -> None:
        if len(self._order) + len(self._waiting) > 4 * len(self._by_address) + _FEW:
            self._order = deque(each for each in self._order if each() is not None)
            self._waiting = deque(each for each in self._waiting if each() is not None)

    @staticmethod
    def _drop_ended(queue: deque[weakref.ref[KeptStorage]]) -> None:
        """Drops what needs no move any more from the front of a queue."""
        while queue and ((entry := queue[0]()) is None or entry.is_moved):
            queue.popleft()

    def _move_next(self, queue: deque[weakref.ref[KeptStorage]], move: Moved) -> bool:
        reference = queue.popleft()
        entry = reference()
        if entry is None or entry.is_moved:
            return True
        if not self._has_no_other_users(entry):
            self._waiting.append(reference)
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
        after = move(before, entry.choice)
        if after is None:
            return False
        for saved in live:
            saved.replace(after)
        self._by_address.pop(address, None)
        entry.leave()
        return True
