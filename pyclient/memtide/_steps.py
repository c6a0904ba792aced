"""Steps by the daemon in Python: the part of the C interface (client/memtide.h) that makes them.

The daemon reads chunks and writes what they become into others, their twins; `publish` then
exchanges the contents of all pairs at once. Until then nothing has changed.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum

from memtide import _library
from memtide._library import check

MOST_STATES = 3
MOST_PIECES = 8192  # And copies, in one call.
MOST_CHUNKS = 4096  # In one call.
MOST_LISTED = 1 << 20  # The node's limit.
MOST_NOTE_BYTES = 512 * 2**10


class Format(IntEnum):
    """How elements are stored."""

    NONE = 0  # They are not.
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3  # Of gradients and rounded parameters only.


class Rule(IntEnum):
    """The optimizers that the daemon knows."""

    ADAM = 1
    ADAMW = 2
    SGD = 3
    ADAGRAD = 4
    LION = 5


# Rules that do not ask which step it is: it is the first, always.
UNCOUNTED = (Rule.SGD,)


@dataclass(frozen=True)
class StepOptions:
    """One optimizer's update; memtide_step_options says what each means."""

    rule: Rule
    step: int
    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    lr_decay: float = 0.0
    gradient_factor: float = 1.0
    amsgrad: bool = False
    maximize: bool = False
    nesterov: bool = False
    fresh_states: bool = False
    parameter_format: Format = Format.FLOAT32
    gradient_format: Format = Format.FLOAT32
    state_format: Format = Format.FLOAT32
    rounded_format: Format = Format.NONE  # Of what the pieces' parameters are the masters.
    rounding_seed: int = 0  # Of chances; 0: to nearest.


@dataclass(frozen=True)
class StepPiece:
    """Consecutive elements, each of their tensors within one chunk: addresses."""

    elements: int
    gradient: int
    parameter: int
    new_parameter: int
    states: tuple[int, ...] = ()
    new_states: tuple[int, ...] = ()
    new_rounded: int = 0  # None.
    first_element: int = 0  # Its number in the optimizer.


@dataclass(frozen=True)
class CopyPiece:
    """Bytes that stay as they are."""

    source: int
    target: int
    size_bytes: int


class Steps:
    """What a client does with steps. Safe to use from any thread."""

    socket_dir: str  # Empty: the node's default.
    _lib: ctypes.CDLL
    _handle: c_void_p

    def step(
        self,
        options: StepOptions | None,
        pieces: Sequence[StepPiece],
        copies: Sequence[CopyPiece] = (),
        *,
        count_non_finite: bool = False,
    ) -> int:
        """Makes the pieces' steps and the copies; returns when the new content is there.

        Returns how many gradients are infinite or NaN, if they are to be counted: one more pass
        over them. Several threads may have calls under way. No options: copies only.
        InvalidArgument: what torch refuses, too, or what is not finite; nothing has changed.
        OutOfRoom: more chunks than host memory holds at once, or no space for the twins.
        """
        table = array("Q")
        for piece in pieces:
            table.extend((piece.elements, piece.gradient, piece.parameter, piece.new_parameter))
            for states in (piece.states, piece.new_states):
                table.extend((*states, *(0,) * (MOST_STATES - len(states))))
            table.extend((piece.new_rounded, piece.first_element))
        copied = array("Q")
        for copy in copies:
            copied.extend((copy.source, copy.target, copy.size_bytes))
        told, non_finite = None, c_uint64()
        if options is not None:
            table_of_options = _library.StepOptions(
                struct_bytes=ctypes.sizeof(_library.StepOptions), **vars(options)
            )
            if count_non_finite:
                table_of_options.non_finite_gradients = ctypes.pointer(non_finite)
            told = byref(table_of_options)
        check(
            self._lib.memtide_step(
                self._handle,
                told,
                table.buffer_info()[0],
                len(pieces),
                copied.buffer_info()[0],
                len(copies),
            )
        )
        return non_finite.value

    def publish(
        self, step: int, places: Sequence[int], twins: Sequence[int], note: bytes, *, keep: bool
    ) -> None:
        """Exchanges the contents of places[i] and twins[i], all at once: the job's step `step`.

        Twins then hold nothing, or with `keep` the old content. The note replaces the last
        step's. Aborted: a chunk was in use or moving; to be tried again.
        """
        assert len(places) == len(twins)
        firsts, seconds = array("I", places), array("I", twins)
        check(
            self._lib.memtide_publish(
                self._handle,
                step,
                firsts.buffer_info()[0],
                seconds.buffer_info()[0],
                len(firsts),
                int(keep),
                note,
                len(note),
            )
        )

    def published(self) -> tuple[int, bytes]:
        """The job's last published step (0: none) and its note."""
        step, note, size_bytes = c_uint64(), c_void_p(), c_size_t()
        check(
            self._lib.memtide_published(self._handle, byref(step), byref(note), byref(size_bytes))
        )
        try:
            return step.value, ctypes.string_at(note, size_bytes.value) if note else b""
        finally:
            self._lib.memtide_free_text(note)

    def chunk_ids(self, first_place: int, count: int) -> list[int]:
        """Names of the chunks at consecutive places, which hold for the job's life."""
        ids = array("Q", bytes(8 * count))
        check(self._lib.memtide_chunk_ids(self._handle, first_place, count, ids.buffer_info()[0]))
        return list(ids)

    def versions(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """The chunk at each place, by name, and how often it has been opened for writing."""
        asked = array("I", places)
        ids, versions = array("Q", bytes(8 * len(asked))), array("Q", bytes(8 * len(asked)))
        check(
            self._lib.memtide_versions(
                self._handle,
                asked.buffer_info()[0],
                len(asked),
                ids.buffer_info()[0],
                versions.buffer_info()[0],
            )
        )
        return list(zip(ids, versions, strict=True))

    def attach(self, ids: Sequence[int]) -> int:
        """Binds chunks of a session that ended to consecutive places; returns the first."""
        table, first = array("Q", ids), c_uint32()
        check(
            self._lib.memtide_attach(self._handle, table.buffer_info()[0], len(table), byref(first))
        )
        return first.value
