"""Checkpoints that training does not wait for, as safetensors files.

Where the daemon steps, the step after the request leaves the old content of every chunk in its
shadow chunk. These shadow chunks are a snapshot: a thread writes them to a file while training goes
on with new ones. Where steps are computed in this process there is no old content, and the file is
written before `checkpoint` returns. A checkpoint that no step follows is written when the script
ends.

safetensors.torch.load_file reads the files. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

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

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self.path = path
        self.entries = entries
        self.total_bytes = sum(entry.size_bytes for entry in entries)
        self.written_bytes = 0
        # `wait` calls this, so that the file is written even if no further step comes.
        self.write_if_awaited: Callable[[], None] = lambda: None
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
            self.write_if_awaited()
        finished = self._finished.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return finished

    def write(self, read: Reader) -> None:
        """Writes the file. `wait` raises the errors."""
        part = self.path.with_name(self.path.name + ".part")
        try:
            with part.open("wb") as file:
                self._write_header(file)
                for entry in self.entries:
                    self._write_entry(file, entry, read)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except BaseException as error:
            self._error = error
            with contextlib.suppress(OSError):  # The error above says more.
                part.unlink()
            if not isinstance(error, Exception):
                raise  # KeyboardInterrupt and SystemExit end the script, too.
        finally:
            # The script may hold this object for long; it shall not hold the tensors' chunks.
            self.entries, self.write_if_awaited = [], lambda: None
            self._finished.set()

    def _write_header(self, file: BinaryIO) -> None:
        offset = 0
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
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

    def _write_entry(self, file: BinaryIO, entry: Entry, read: Reader) -> None:
        if not entry.address:
            if entry.size_bytes:
                file.write(entry.tensor.view(-1).view(torch.uint8).numpy().tobytes())
            self.written_bytes += entry.size_bytes
            return
        for block in read(entry.address, entry.size_bytes):
            file.write(block)
            self.written_bytes += len(block)


def blocks_of(address: int, size_bytes: int, border: int) -> Iterator[tuple[int, int]]:
    """Splits a span into blocks, none of which crosses a multiple of `border` bytes."""
    end = address + size_bytes
    while address < end:
        size = min(_BLOCK_BYTES, end - address, border - address % border)
        yield address, size
        address += size
