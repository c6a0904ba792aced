"""Calls of the C interface that ask a daemon without a client."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from memtide._library import check, library


def inspect_node(
    socket_dir: Path | str | None = None, *, sessions: bool = False, max_chunks: int = 0
) -> dict[str, Any]:
    """InspectNodeResponse of the daemon at `socket_dir` (default: the node's) as a dict.

    Numbers of 64 bits are texts, durations are "1.5s", and fields that are zero may be missing:
    that is protobuf's JSON. Unavailable: no daemon answers.
    """
    text = c_void_p()
    check(library().memtide_inspect_node(_path(socket_dir), int(sessions), max_chunks, byref(text)))
    return _taken(text)


def get_trace(socket_dir: Path | str | None = None, *, job_id: int = 0) -> bytes:
    """A serialized Trace (proto/memtide/v1/trace.proto) of a job; zero: the only one.

    Unavailable: no daemon answers. NotFound, InvalidArgument: no such job, or several.
    """
    text, size = c_void_p(), c_size_t()
    check(library().memtide_get_trace(_path(socket_dir), job_id, byref(text), byref(size)))
    try:
        return ctypes.string_at(text.value or 0, size.value)
    finally:
        library().memtide_free_text(text)


def read_trace(trace: bytes) -> dict[str, Any]:
    """A serialized Trace as a dict, in protobuf's JSON. InvalidArgument: it is none."""
    text = c_void_p()
    check(library().memtide_read_trace(trace, len(trace), byref(text)))
    return _taken(text)


def _path(socket_dir: Path | str | None) -> bytes | None:
    return os.fsencode(socket_dir) if socket_dir else None


def _taken(text: c_void_p) -> dict[str, Any]:
    try:
        reply: dict[str, Any] = json.loads(ctypes.string_at(text.value or 0))
    finally:
        library().memtide_free_text(text)
    return reply
