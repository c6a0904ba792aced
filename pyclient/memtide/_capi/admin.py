"""Calls of the C interface that query a daemon without opening a session."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from memtide._capi.library import check, load_library


def inspect_node(
    socket_dir: Path | str | None = None, *, sessions: bool = False, max_chunks: int = 0
) -> dict[str, Any]:
    """The InspectNodeResponse of the daemon at `socket_dir` (default: the node's) as a dict.

    The dict is protobuf's JSON: 64-bit numbers are texts, durations are texts such as "1.5s", and
    fields that are zero may be missing. Unavailable: no daemon answers.
    """
    text = c_void_p()
    check(
        load_library().memtide_inspect_node(
            _path_bytes(socket_dir), int(sessions), max_chunks, byref(text)
        )
    )
    return _take_json(text)


def call(
    method: str, request: Mapping[str, Any], socket_dir: Path | str | None = None
) -> dict[str, Any]:
    """The reply of a method of the AdminService that changes the node: EndJob, Drain, SetQuota or
    ClearQuota. Requests and replies are protobuf's JSON.

    Unavailable: no daemon answers. PermissionDenied: this user may not make the call.
    """
    text = c_void_p()
    arguments = (method.encode(), json.dumps(request).encode())
    check(load_library().memtide_call_admin(_path_bytes(socket_dir), *arguments, byref(text)))
    return _take_json(text)


def get_metrics(socket_dir: Path | str | None = None) -> str:
    """The metrics of the node's daemon in Prometheus' text format. Unavailable: no daemon
    answers."""
    text = c_void_p()
    check(load_library().memtide_get_metrics(_path_bytes(socket_dir), byref(text)))
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        load_library().memtide_free_text(text)


def get_trace(socket_dir: Path | str | None = None, *, job_id: int = 0) -> bytes:
    """The serialized Trace (proto/memtide/v1/trace.proto) of a job; job 0 is the only open one.

    Unavailable: no daemon answers. NotFound: there is no such job. InvalidArgument: `job_id` is 0
    and several jobs are open.
    """
    text, size = c_void_p(), c_size_t()
    check(
        load_library().memtide_get_trace(_path_bytes(socket_dir), job_id, byref(text), byref(size))
    )
    return _take_bytes(text, size)


def read_trace(trace: bytes) -> dict[str, Any]:
    """A serialized Trace as a dict, in protobuf's JSON. InvalidArgument: the bytes are no Trace."""
    text = c_void_p()
    check(load_library().memtide_read_trace(trace, len(trace), byref(text)))
    return _take_json(text)


def add_to_trace(trace: bytes, added: Mapping[str, Any]) -> bytes:
    """A serialized Trace with what `added` has in protobuf's JSON of a Trace, too.
    InvalidArgument: one of them is no Trace."""
    json_bytes = json.dumps(added).encode()
    text, size = c_void_p(), c_size_t()
    check(
        load_library().memtide_add_to_trace(
            trace, len(trace), json_bytes, len(json_bytes), byref(text), byref(size)
        )
    )
    return _take_bytes(text, size)


def _path_bytes(socket_dir: Path | str | None) -> bytes | None:
    return os.fsencode(socket_dir) if socket_dir else None


def _take_bytes(text: c_void_p, size: c_size_t) -> bytes:
    try:
        return ctypes.string_at(text.value or 0, size.value)
    finally:
        load_library().memtide_free_text(text)


def _take_json(text: c_void_p) -> dict[str, Any]:
    try:
        reply: dict[str, Any] = json.loads(ctypes.string_at(text.value or 0))
    finally:
        load_library().memtide_free_text(text)
    return reply
