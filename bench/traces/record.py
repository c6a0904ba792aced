"""Records the traces of this folder: trains each script under memtide, in pools that are too small.

    MEMTIDE_LIBRARY=... MEMTIDED=... PYTHONPATH=pyclient python bench/traces/record.py [NAME...]

The transfers are left out of the traces, as they depend on the pools, and a replay decides them
anew. The stalls are left in, so that they do not count as computing.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
SCRIPTS: dict[str, list[str]] = {
    "gpt": [
        str(EXAMPLES / "train_gpt.py"),
        *("--layers=8", "--width=384", "--context=64", "--batch=4", "--steps=7"),
    ],
    "bert": [str(HERE / "train_bert.py")],
    "resnet": [str(HERE / "train_resnet.py")],
    "moe": [str(HERE / "train_moe.py")],
    "encoder_decoder": [str(HERE / "train_encoder_decoder.py")],
    "lora": [str(HERE / "train_lora.py")],
}
# Too small for every script: a process whose chunks all fit reports no moments to the daemon.
POOLS = ["--device=emulated", "--device-pool=64MiB", "--host-pool=64MiB", "--ssd-pool=2GiB"]
CHUNK_SIZE = "2MiB"
_MOST_BYTES = 200 * 1024

# Field numbers in memtide.v1.Trace.
_MADE_BY, _MOVES = 1, 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the varint at an offset. Returns it, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields each field of a protobuf message: its number, and its bytes with the tag."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = varint(message, at)
        if tag & 7 == 0:
            _, at = varint(message, at)
        elif tag & 7 == 2:
            size, at = varint(message, at)
            at += size
        else:
            at += 8 if tag & 7 == 1 else 4
        yield tag >> 3, message[begin:at]


def encode(number: int) -> bytes:
    """Encodes a number as a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def strip(trace: bytes, made_by: str) -> bytes:
    """Removes the transfers from a trace, and sets its `made_by`."""
    command = made_by.encode()
    others = [field for number, field in fields(trace) if number not in (_MADE_BY, _MOVES)]
    return encode(_MADE_BY << 3 | 2) + encode(len(command)) + command + b"".join(others)


def record(name: str) -> None:
    """Trains a script and writes NAME.trace.gz."""
    with tempfile.TemporaryDirectory() as home:
        raw = Path(home) / "raw.trace.gz"
        options = ["--quiet", f"--trace={raw}", f"--chunk-size={CHUNK_SIZE}", *POOLS]
        subprocess.run(
            [sys.executable, "-m", "memtide", "run", *options, *SCRIPTS[name]], check=True
        )
        trace = gzip.decompress(raw.read_bytes())
    script, *arguments = SCRIPTS[name]
    made_by = " ".join([Path(script).name, *arguments, f"(chunks of {CHUNK_SIZE})"])
    # The header has no file name and no time, so the same trace gives the same file.
    packed = gzip.compress(strip(trace, made_by), 9, mtime=0)
    if len(packed) > _MOST_BYTES:
        sys.exit(f"{name}: {len(packed)} bytes are too many to keep")
    (HERE / f"{name}.trace.gz").write_bytes(packed)
    print(f"{name}: {len(packed)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(SCRIPTS)}")
    for name in parser.parse_args().names or SCRIPTS:
        if name not in SCRIPTS:
            parser.error(f"there is no script for {name}")
        record(name)


if __name__ == "__main__":
    main()
