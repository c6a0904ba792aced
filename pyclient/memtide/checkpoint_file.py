"""Checkpoints that training does not wait for.

Where the daemon steps, the step after a checkpoint was asked for leaves the old content of every
chunk in its twin. These twins are a snapshot: a thread writes them to a file while training goes on
with new ones. Where steps are made in this process there is no old content, and the file is written
before `checkpoint` returns. So it is for what no step has reached when the script ends.

Files are safetensors, which safetensors.torch.load_file reads: whole under their name, or absent.
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
# From an address and a size to blocks of what was there when the checkpoint was asked for.
Reader = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True)
class Entry:
    """One tensor: itself, held so that its chunks stay, or where that is no help, a copy of it."""

    name: str
    tensor: torch.Tensor
    address: int  # In chunks; 0: it is a copy.

    @property
    def size_bytes(self) -> int:
        """Of its elements."""
        return self.tensor.nbytes


def entries_of(
    tensors: Iterable[tuple[str, torch.Tensor]], manages: Callable[[torch.Tensor], bool]
) -> list[Entry]:
    """What is to be written. ValueError: a type that safetensors has not."""
    found = []
    for name, tensor in tensors:
        if tensor.dtype not in _TYPES:
            raise ValueError(f"{name} is {tensor.dtype}, which safetensors cannot hold")
        in_place = manages(tensor) and tensor.is_contiguous()
        held = tensor.detach()
        if not in_place:
            held = held.to("cpu", copy=True).contiguous()
        found.append(Entry(name, held, tensor.data_ptr() if in_place else 0))
    return found


class Checkpoint:
    """A file of tensors in the making."""

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self.path = path
        self.entries = entries
        self.total_bytes = sum(entry.size_bytes for entry in entries)
        self.written_bytes = 0
        # Asked of whoever is to write it, by one who waits.
        self.hurry: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._finished = threading.Event()

    @property
    def done(self) -> bool:
        """Whether the file is there, or never will be: `wait` says which."""
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns when the file is there; False: not in time. Raises what its writing raised.

        In the thread that trains, before the next step, it writes the file itself.
        """
        if timeout_s != 0:
            self.hurry()
        finished = self._finished.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return finished

    def write(self, read: Reader) -> None:
        """Writes the file; its errors are for `wait` to raise."""
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
            with contextlib.suppress(OSError):  # Where it is, nothing can be.
                part.unlink()
            if not isinstance(error, Exception):
                raise  # The user's Ctrl-C is meant for more than this file.
        finally:
            # Whoever keeps the checkpoint need not keep what is in it.
            self.entries, self.hurry = [], lambda: None
            self._finished.set()

    def _write_header(self, file: BinaryIO) -> None:
        at = 0
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        for entry in self.entries:
            header[entry.name] = {
                "dtype": _TYPES[entry.tensor.dtype],
                "shape": list(entry.tensor.shape),
                "data_offsets": [at, at + entry.size_bytes],
            }
            at += entry.size_bytes
        written = json.dumps(header).encode()
        written += b" " * (-len(written) % 8)
        file.write(len(written).to_bytes(8, "little"))
        file.write(written)

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
    """Addresses and sizes of blocks, none of which crosses a multiple of `border` bytes."""
    end = address + size_bytes
    while address < end:
        size = min(_BLOCK_BYTES, end - address, border - address % border)
        yield address, size
        address += size
