"""Loads libmemtide.so and declares its structs and signatures (client/memtide.h).

`check` raises the exception of a status code (errors.py), with the library's message.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, ClassVar

from memtide import errors
from memtide._capi.locate import find_library

DIGEST_BYTES = 16


class Options(ctypes.Structure):
    """memtide_options: how to open a session. `numbers` are the fields that hold numbers; zero or
    an empty text selects the library's default."""

    # Without a __dict__, a misspelt field in `numbers` is an AttributeError.
    __slots__ = ()
    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("socket_dir", c_char_p),
        ("job_name", c_char_p),
        ("program", c_char_p),
        ("chunk_bytes", c_uint64),
        ("device_share_bytes", c_uint64),
        ("host_share_bytes", c_uint64),
        ("ssd_share_bytes", c_uint64),
        ("address_bytes", c_uint64),
        ("device_memory", c_uint32),
        ("time_to_live_s", c_uint32),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("device", c_char_p),
        ("durable_every", c_uint32),
        ("alike", c_uint32),
        ("group", c_char_p),
        ("group_rank", c_uint32),
        ("group_ranks", c_uint32),
    ]

    def __init__(
        self,
        socket_dir: str = "",
        *,
        job_name: str = "",
        program: str = "",
        device: str = "",
        group: str = "",
        **numbers: int,
    ) -> None:
        super().__init__(
            struct_bytes=ctypes.sizeof(Options),
            socket_dir=os.fsencode(socket_dir) or None,
            job_name=job_name.encode() or None,
            program=program.encode() or None,
            device=device.encode() or None,
            group=group.encode() or None,
            **numbers,
        )


class Properties(ctypes.Structure):
    """memtide_properties."""

    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("places", c_uint32),
        ("base", c_void_p),
        ("chunk_bytes", c_uint64),
        ("device_slots", c_uint32),
        ("host_slots", c_uint32),
        ("ssd_slots", c_uint32),
        ("max_chunks", c_uint32),
        ("lease_budget", c_uint32),
        ("kernel_faults", c_uint32),
        ("handles_faults", c_uint32),
        ("device_memory", c_uint32),
        ("dl_device_type", c_int32),
        ("dl_device_id", c_int32),
        ("needs_streams", c_uint32),
        ("device_number", c_uint32),
        ("job_id", c_uint64),
        ("session_id", c_uint64),
    ]


class Limits(ctypes.Structure):
    """memtide_limits."""

    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("chunks_per_call", c_uint32),
        ("step_manifest_bytes", c_uint32),
        ("chunks_per_node", c_uint32),
        ("max_wait_s", c_uint32),
        ("min_slots", c_uint32),
    ]


class Span(ctypes.Structure):
    """memtide_span."""

    _fields_: ClassVar = [("address", c_uint64), ("bytes", c_uint64)]


class PartContents(ctypes.Structure):
    """memtide_part_contents."""

    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("work_digest", c_uint8 * DIGEST_BYTES),
        ("read_digests", c_char_p),
    ]


class SharedPart(ctypes.Structure):
    """memtide_shared_part."""

    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("state", c_uint32),
        ("part", c_uint64),
        ("addresses", c_void_p),
        ("unknown_reads", c_void_p),
        ("different_reads", c_void_p),
        ("unknown_count", c_uint32),
        ("has_difference", c_uint32),
        ("different_rank", c_uint32),
        ("different_work", c_uint32),
        ("different_count", c_uint32),
    ]


class Stats(ctypes.Structure):
    """memtide_stats."""

    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("chunks", c_uint32),
        ("leases_held", c_uint32),
        ("leases_in_use", c_uint32),
        ("acquires", c_uint64),
        ("acquire_hits", c_uint64),
        ("faults", c_uint64),
        ("upgrades", c_uint64),
        ("releases", c_uint64),
        ("calls", c_uint64),
        ("wait_nanoseconds", c_uint64),
        ("lease_budget", c_uint32),
        ("slots", c_uint32),
        ("maps", c_uint64),
        ("call_nanoseconds", c_uint64),
        ("map_nanoseconds", c_uint64),
        ("unmap_nanoseconds", c_uint64),
        ("protected_iterations", c_uint64),
        ("blocking_calls", c_uint64),
    ]


# The arguments and the result of each function of memtide.h.
_PLACES = [c_void_p, c_void_p, c_size_t]
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "memtide_open": ([POINTER(Options), POINTER(c_void_p)], c_int),
    "memtide_close": ([c_void_p], None),
    "memtide_get_properties": ([c_void_p, POINTER(Properties)], c_int),
    "memtide_get_limits": ([c_void_p, POINTER(Limits)], c_int),
    "memtide_allocate": ([c_void_p, c_int, c_uint32, POINTER(c_uint32)], c_int),
    "memtide_allocate_undefined": ([c_void_p, c_int, c_uint32, POINTER(c_uint32)], c_int),
    "memtide_allocate_above_ssd": ([c_void_p, c_int, c_uint32, POINTER(c_uint32)], c_int),
    "memtide_discard": (_PLACES, c_int),
    "memtide_offer": ([*_PLACES, c_void_p], c_int),
    "memtide_offer_when_written": (_PLACES, c_int),
    "memtide_duplicate": ([*_PLACES, c_uint32, POINTER(c_uint32)], c_int),
    "memtide_free": ([c_void_p, c_uint32, c_uint32], c_int),
    "memtide_acquire": ([*_PLACES, c_int, c_int], c_int),
    "memtide_release": (_PLACES, c_int),
    "memtide_cover_streams": ([c_void_p, c_void_p, c_size_t], c_int),
    "memtide_cover_all_streams": ([c_void_p], c_int),
    "memtide_moment": ([c_void_p, c_int, c_char_p, c_uint64, c_uint64], c_int),
    "memtide_end_iteration": ([c_void_p], c_int),
    "memtide_protect": ([c_void_p], c_int),
    "memtide_evict": (_PLACES, c_int),
    "memtide_flush": ([c_void_p], c_int),
    "memtide_resize": ([c_void_p, c_uint64, c_int], c_int),
    "memtide_start_part": (
        [c_void_p, c_void_p, c_size_t, c_size_t, POINTER(c_uint64), c_void_p],
        c_int,
    ),
    "memtide_start_shared_part": (
        [c_void_p, c_void_p, c_size_t, c_size_t, POINTER(PartContents), POINTER(SharedPart)],
        c_int,
    ),
    "memtide_end_part": ([c_void_p, c_uint64, c_int, c_uint64], c_int),
    "memtide_commit": (
        [
            *(c_void_p, c_uint64, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
            *(c_int, c_char_p, c_size_t),
        ],
        c_int,
    ),
    "memtide_committed": (
        [c_void_p, POINTER(c_uint64), POINTER(c_void_p), POINTER(c_size_t)],
        c_int,
    ),
    "memtide_versions": ([c_void_p, c_void_p, c_size_t, c_void_p, c_void_p], c_int),
    "memtide_chunk_ids": ([c_void_p, c_uint32, c_uint32, c_void_p], c_int),
    "memtide_attach": ([c_void_p, c_void_p, c_uint32, POINTER(c_uint32)], c_int),
    "memtide_wrap": ([c_void_p, c_uint64, c_uint64, POINTER(c_void_p)], c_int),
    "memtide_take_returned": ([c_void_p, POINTER(Span), c_size_t, POINTER(c_size_t)], c_int),
    "memtide_get_stats": ([c_void_p, POINTER(Stats)], c_int),
    "memtide_default_chunk_bytes": ([c_uint64, c_uint64, POINTER(c_uint64)], c_int),
    "memtide_hash_pieces": ([c_char_p, c_size_t, c_void_p, c_size_t, c_void_p], c_int),
    "memtide_inspect_node": ([c_char_p, c_int, c_uint32, POINTER(c_void_p)], c_int),
    "memtide_call_admin": ([c_char_p, c_char_p, c_char_p, POINTER(c_void_p)], c_int),
    "memtide_get_metrics": ([c_char_p, POINTER(c_void_p)], c_int),
    "memtide_get_trace": (
        [c_char_p, c_uint64, POINTER(c_void_p), POINTER(c_size_t)],
        c_int,
    ),
    "memtide_read_trace": ([c_char_p, c_size_t, POINTER(c_void_p)], c_int),
    "memtide_add_to_trace": (
        [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
        c_int,
    ),
    "memtide_free_text": ([c_void_p], None),
    "memtide_reinstall_handlers": ([], c_int),
    "memtide_last_error": ([], c_char_p),
    "memtide_version": ([], c_char_p),
}


@cache
def load_library() -> ctypes.CDLL:
    """libmemtide.so with its signatures. NotInstalled: it is missing, or is another library."""
    path = find_library()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise errors.NotInstalled(f"{path} cannot be loaded: {error}") from error
    for name, (arguments, result) in _SIGNATURES.items():
        try:
            function = getattr(lib, name)
        except AttributeError as error:
            raise errors.NotInstalled(f"{path} is not libmemtide.so: it lacks {name}") from error
        function.argtypes, function.restype = arguments, result
    return lib


def check(code: int) -> None:
    """Raises the exception of a status code; 0 is OK."""
    if code:
        raise errors.from_status(code, load_library().memtide_last_error().decode(errors="replace"))
