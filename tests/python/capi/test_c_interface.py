"""Python's constants and structs of the C interface are those of client/memtide.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness import PACKAGE_PARENT
from memtide import errors
from memtide._capi import client, content_hash, library, optimizer_step, shared_part
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
}
ENUMS = (
    *(client.Access, client.Kind, client.Phase),
    *(optimizer_step.CommitFlag, shared_part.PartState),
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
    assert structs == {*MIRRORS}


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
