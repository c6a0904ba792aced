"""Checkpoints that training does not wait for, as safetensors files.

Where steps are in parts, the step after the request leaves the old content of every chunk in its
shadow chunk. These shadow chunks are the checkpoint: a thread writes them to a file while training
goes on with new ones. Where the script's thread steps there is no old content, and the file is
written before `checkpoint` returns. A checkpoint that no step follows is written when the
script ends.

safetensors.torch.load_file reads the files. A file appears under its name only when it is complete
and on stable storage. Its header has the SHA-256 of the file with zeros in place of these 64 digits
(`__metadata__`, "memtide_sha256"), which `load` checks. Other readers of the format do not.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch

from memtide._checkpoint.whole_file import written_whole
from memtide.errors import DataLoss

_BLOCK_BYTES = 8 * 2**20
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}
_HASH = "memtide_sha256"
_NO_HASH = "0" * 64  # Stands for the hash where it is computed.
_MOST_HEADER_BYTES = 100_000_000  # The format's own limit.
# Takes an address and a size in bytes; yields blocks of the content at the time of the request.
Reader = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True)
class Entry:
    """One tensor of a file. If it is in chunks, the reference keeps them allocated; else it is a
    copy."""

    name: str
    tensor: torch.Tensor
    address: int  # Address in chunks; 0: `tensor` is a copy.

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.tensor.nbytes


def entries_of(
    tensors: Iterable[tuple[str, torch.Tensor]], manages: Callable[[torch.Tensor], bool]
) -> list[Entry]:
    """Entries for all tensors. ValueError: safetensors cannot hold a tensor's type."""
    entries = []
    for name, tensor in tensors:
        if tensor.dtype not in _TYPES:
            raise ValueError(f"{name} is {tensor.dtype}, which safetensors cannot hold")
        in_place = manages(tensor) and tensor.is_contiguous()
        content = tensor.detach()
        if not in_place:
            content = content.to("cpu", copy=True).contiguous()
        entries.append(Entry(name, content, tensor.data_ptr() if in_place else 0))
    return entries


class Checkpoint:
    """A safetensors file that is being written, or is about to be.

    `written_bytes` of `total_bytes` are in the file. Use it from any thread.
    """

    def __init__(
        self,
        path: Path,
        entries: list[Entry],
        before_wait: Callable[[Checkpoint], None] = lambda _: None,
    ) -> None:
        """`wait` calls `before_wait`, so that the file is written even if no further step comes."""
        self.path = path
        self.entries = entries
        self.total_bytes = sum(entry.size_bytes for entry in entries)
        self.written_bytes = 0
        self._before_wait = before_wait
        self._error: BaseException | None = None
        self._finished = threading.Event()

    @property
    def done(self) -> bool:
        """Whether writing has ended. `wait` raises if it has failed."""
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the file; returns False if it is not complete after `timeout_s` seconds.

        Raises the error that writing raised. In the thread that trains, before the next step, this
        call writes the file itself.
        """
        if timeout_s != 0:
            self._before_wait(self)
        finished = self._finished.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return finished

    def write(self, read: Reader) -> None:
        """Writes the file. `wait` raises the errors."""
        try:
            with written_whole(self.path) as file:
                hashed = _HashedFile(file)
                at = self._write_header(hashed)
                for entry in self.entries:
                    self._write_entry(hashed, entry, read)
                file.seek(at)
                file.write(hashed.sha256.hexdigest().encode())
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise  # KeyboardInterrupt and SystemExit end the script, too.
        finally:
            # The script may hold this object for long; it shall not hold the tensors' chunks.
            self.entries, self._before_wait = [], lambda _: None
            self._finished.set()

    def _write_header(self, file: _HashedFile) -> int:
        """Returns where in the file the hash belongs."""
        offset = 0
        # The first member, so that nothing before it looks like the hash.
        header: dict[str, object] = {"__metadata__": {_HASH: _NO_HASH, "format": "pt"}}
        for entry in self.entries:
            header[entry.name] = {
                "dtype": _TYPES[entry.tensor.dtype],
                "shape": list(entry.tensor.shape),
                "data_offsets": [offset, offset + entry.size_bytes],
            }
            offset += entry.size_bytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        return 8 + text.index(_NO_HASH.encode())

    def _write_entry(self, file: _HashedFile, entry: Entry, read: Reader) -> None:
        if not entry.address:
            if entry.size_bytes:
                file.write(entry.tensor.view(-1).view(torch.uint8).numpy().tobytes())
            self.written_bytes += entry.size_bytes
            return
        for block in read(entry.address, entry.size_bytes):
            file.write(block)
            self.written_bytes += len(block)


class _HashedFile:
    """A file, and the hash of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.sha256.update(content)


def load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that Checkpoint has written, by name, in host memory.

    DataLoss: its bytes are not those that were written, or it has no hash.
    """
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        length = file.read(8)
        header_bytes = int.from_bytes(length, "little")
        if header_bytes > min(_MOST_HEADER_BYTES, total - 8):
            raise DataLoss(f"{path} is damaged: it ends in its header")
        text = file.read(header_bytes)
        header = _parse(text, path)
        expected = header.pop("__metadata__")[_HASH].encode()
        sha256 = hashlib.sha256(length + text.replace(expected, _NO_HASH.encode(), 1))
        tensors = {}
        offset = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            tensor = _made(entry, offset, total - 8 - header_bytes, f"{path}: {name}")
            offset += tensor.nbytes
            tensors[name] = tensor
            if tensor.nbytes:
                _read_into(file, tensor.view(-1).view(torch.uint8), sha256)
        if offset != total - 8 - header_bytes or sha256.hexdigest().encode() != expected:
            raise DataLoss(
                f"{path} is damaged: its bytes have another hash than when they were written; use "
                "another checkpoint"
            )
    return tensors


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """The header, with a hash and, for each tensor, its type, shape and place."""
    try:
        header = json.loads(text)
        complete = re.fullmatch("[0-9a-f]{64}", header["__metadata__"][_HASH]) is not None
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                complete &= entry["dtype"] in _DTYPES and type(start) is type(end) is int
                complete &= isinstance(entry["shape"], list)
    except (ValueError, KeyError, TypeError, RecursionError):
        complete = False
    if not complete:
        raise DataLoss(
            f"{path} is damaged, or memtide.checkpoint has not written it: its header has no hash. "
            "safetensors.torch.load_file reads files without a check"
        )
    checked: dict[str, Any] = header
    return checked


def _made(entry: Mapping[str, Any], offset: int, most_bytes: int, name: str) -> torch.Tensor:
    """Memory for a tensor that begins at `offset`. DataLoss: it is not there."""
    shape, dtype = entry["shape"], _DTYPES[entry["dtype"]]
    if all(isinstance(n, int) and n >= 0 for n in shape):
        size = math.prod(shape) * dtype.itemsize
        if offset + size <= most_bytes and entry["data_offsets"] == [offset, offset + size]:
            return torch.empty(shape, dtype=dtype)
    raise DataLoss(f"{name} is damaged: its place in the file is not that of its type and shape")


def _read_into(file: BufferedReader, flat: torch.Tensor, sha256: hashlib._Hash) -> None:
    content = memoryview(flat.numpy().data)
    while content:
        count = file.readinto(content[:_BLOCK_BYTES])
        if not count:
            return  # The file became shorter meanwhile, which its hash shows.
        sha256.update(content[:count])
        content = content[count:]


def blocks_of(address: int, size_bytes: int, border: int) -> Iterator[tuple[int, int]]:
    """Splits a span into blocks, none of which crosses a multiple of `border` bytes."""
    end = address + size_bytes
    while address < end:
        size = min(_BLOCK_BYTES, end - address, border - address % border)
        yield address, size
        address += size
