"""Python's constants and structs of the C interface are those of client/memtide.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from harness import PACKAGE_PARENT
from memtide import errors
from memtide._capi import client, content_hash, library, optimizer_step, shared_part
from memtide._capi.lost_chunks import LostChunks, no_names
from memtide._memory.chunk_size import CANDIDATES, CANDIDATES_ON_DEVICE

HEADER = PACKAGE_PARENT.parent / "client" / "memtide.h"
MIRRORS: dict[str, type[ctypes.Structure]] = {
    "memtide_limits": library.Limits,
    "memtide_options": library.Options,
    "memtide_part_contents": library.PartContents,
    "memtide_properties": library.Properties,
    "memtide_shared_part": library.SharedPart,
    "memtide_span": library.Span,
    "memtide_stats": library.Stats,
    "memtide_step_options": library.StepOptions,
}
# Tables of 64-bit words, which Python fills without a ctypes struct.
TABLES = {
    "memtide_step_piece": (
        *("elements", "gradient", "parameter", "new_parameter"),
        *("state", "new_state", "new_rounded", "first_element"),
    ),
    "memtide_copy_piece": ("from", "to", "bytes"),
}
ENUMS = (
    *(client.Access, client.Kind, client.Phase),
    *(optimizer_step.CommitFlag, optimizer_step.Format, optimizer_step.Rule),
    shared_part.PartState,
)
# Constants that Python does not have: MEMTIDE_OK is no exception, and only the library chooses how
# a GPU's memory is shared.
NOT_IN_PYTHON = {"OK", "SHARED_MEMORY", "CUDA_DESCRIPTOR", "CUDA_IPC"}
KINDS = {
    ctypes.c_int32: "int32_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_double: "double",
}


def evaluate(expressions: Iterable[str], folder: Path) -> dict[str, str]:
    """The values that a C program prints for expressions of type size_t, int or const char*."""
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        f'#include "{HEADER}"',
        '#define KIND(x) _Generic((x), int32_t: "int32_t", uint32_t: "uint32_t", '
        'uint64_t: "uint64_t", double: "double", default: "pointer")',
        '#define FORMAT(x) _Generic((x), size_t: "%zu\\n", int: "%d\\n", default: "%s\\n")',
        "int main(void) {",
    ]
    expressions = list(expressions)
    lines += [f"printf(FORMAT({expression}), {expression});" for expression in expressions]
    source, program = folder / "interface.c", folder / "interface"
    source.write_text("\n".join([*lines, "return 0; }", ""]))
    subprocess.run(["cc", "-std=c11", "-w", source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return dict(zip(expressions, done.stdout.split("\n"), strict=False))


def enumerators() -> set[str]:
    """The names of the header's numeric constants, without MEMTIDE_."""
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    names = re.findall(r"\bMEMTIDE_(\w+) = -?\d+", code)
    return {*names, *re.findall(r"^#define MEMTIDE_(\w+) -?\d+", code, re.MULTILINE)}


def test_every_struct_of_the_header_is_compared() -> None:
    structs = set(re.findall(r"^typedef struct (memtide_\w+) \{", HEADER.read_text(), re.MULTILINE))
    assert structs == {*MIRRORS, *TABLES}


@pytest.mark.parametrize("name", MIRRORS)
def test_a_structs_fields_are_where_c_has_them(name: str, tmp_path: Path) -> None:
    mirror = MIRRORS[name]
    expected = {f"sizeof({name})": str(ctypes.sizeof(mirror))}
    for field, kind in mirror._fields_:
        expected[f"offsetof({name}, {field})"] = str(getattr(mirror, field).offset)
        expected[f"KIND((({name}*)0)->{field})"] = KINDS.get(kind, "pointer")
    assert evaluate(expected, tmp_path) == expected


def test_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    expected: dict[str, int] = {member.name: member.value for enum in ENUMS for member in enum}
    del expected["NONE"]  # Format.NONE stands for an absent tensor; C has no such constant.
    for name in ("DIGEST_BYTES", "LEAST_SECRET_BYTES"):
        expected[name] = getattr(content_hash, name)
    for error in errors.MemtideError.__subclasses__():
        if error.code != errors.MemtideError.code:
            expected[re.sub(r"(?<!^)([A-Z])", r"_\1", error.__name__).upper()] = error.code
    assert {*expected, *NOT_IN_PYTHON} == enumerators()
    values = evaluate((f"MEMTIDE_{name}" for name in expected), tmp_path)
    assert values == {f"MEMTIDE_{name}": str(value) for name, value in expected.items()}


def test_the_search_and_the_librarys_default_have_the_same_bounds() -> None:
    assert client.default_chunk_bytes(0, 1) == min(CANDIDATES)
    assert client.default_chunk_bytes(0, 2**60) == max(CANDIDATES)
    assert client.default_chunk_bytes(2**38, 2**60) == max(CANDIDATES_ON_DEVICE)


class StepRecorder:
    """Replaces libmemtide.so, and copies the tables that memtide_step receives."""

    def __init__(self) -> None:
        self.pieces, self.copies = b"", b""
        self.piece_bytes, self.copy_bytes = 0, 0

    def memtide_step(
        self, client: Any, options: Any, pieces: int, piece_count: int, copies: int, copy_count: int
    ) -> int:
        self.pieces = ctypes.string_at(pieces, piece_count * self.piece_bytes)
        self.copies = ctypes.string_at(copies, copy_count * self.copy_bytes)
        return 0


def words(table: bytes, offset: int, count: int = 1) -> list[int]:
    return list((ctypes.c_uint64 * count).from_buffer_copy(table, offset))


def test_tables_of_pieces_have_the_layout_of_c(tmp_path: Path) -> None:
    layout = evaluate(
        [
            *(f"sizeof({name})" for name in TABLES),
            *(f"offsetof({name}, {field})" for name, fields in TABLES.items() for field in fields),
        ],
        tmp_path,
    )
    recorder = StepRecorder()
    recorder.piece_bytes = int(layout["sizeof(memtide_step_piece)"])
    recorder.copy_bytes = int(layout["sizeof(memtide_copy_piece)"])
    steps = optimizer_step.Steps()
    steps._lib = recorder  # type: ignore[assignment]
    steps._handle = ctypes.c_void_p()
    steps.lost = LostChunks(lambda place: place, 0, 1, no_names)
    piece = optimizer_step.StepPiece(
        elements=10,
        gradient=11,
        parameter=12,
        new_parameter=13,
        states=(14, 15, 16),
        new_states=(17, 18, 19),
        new_rounded=20,
        first_element=21,
    )
    other = optimizer_step.StepPiece(elements=30, gradient=31, parameter=32, new_parameter=33)
    steps.step(
        None, [other, piece], [optimizer_step.CopyPiece(source=40, target=41, size_bytes=42)]
    )

    second = recorder.pieces[recorder.piece_bytes :]
    assert len(second) == recorder.piece_bytes
    for field, expected in {
        "elements": [10],
        "gradient": [11],
        "parameter": [12],
        "new_parameter": [13],
        "state": [14, 15, 16],
        "new_state": [17, 18, 19],
        "new_rounded": [20],
        "first_element": [21],
    }.items():
        offset = int(layout[f"offsetof(memtide_step_piece, {field})"])
        assert words(second, offset, len(expected)) == expected, field
    for field, value in {"from": 40, "to": 41, "bytes": 42}.items():
        offset = int(layout[f"offsetof(memtide_copy_piece, {field})"])
        assert words(recorder.copies, offset) == [value], field
