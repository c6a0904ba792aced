"""Records the traces of this folder: each script under memtide, in pools that are too small for it.

    MEMTIDE_LIBRARY=... MEMTIDED=... PYTHONPATH=pyclient python bench/traces/record.py [NAME...]

What was moved depends on the pools, and replay decides it anew: it is left out. The stalls stay, so
that they can be told from computing.
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
# Too small for any of them: with room for all, a process has nothing to tell the daemon.
POOLS = ["--device=emulated", "--device-pool=64MiB", "--host-pool=64MiB", "--ssd-pool=2GiB"]
CHUNK_SIZE = "2MiB"
_MOST_BYTES = 200 * 1024

# Numbers in memtide.v1.Trace.
_MADE_BY, _MOVES = 1, 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message: number, and the bytes of all of it."""
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
    """As a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def strip(trace: bytes, made_by: str) -> bytes:
    """Without what was moved, and with how it was made."""
    said = made_by.encode()
    kept = [field for number, field in fields(trace) if number not in (_MADE_BY, _MOVES)]
    return encode(_MADE_BY << 3 | 2) + encode(len(said)) + said + b"".join(kept)


def record(name: str) -> None:
    """Writes NAME.trace.gz."""
    with tempfile.TemporaryDirectory() as home:
        raw = Path(home) / "raw.trace.gz"
        options = ["--quiet", f"--trace={raw}", f"--chunk-size={CHUNK_SIZE}", *POOLS]
        subprocess.run(
            [sys.executable, "-m", "memtide", "run", *options, *SCRIPTS[name]], check=True
        )
        trace = gzip.decompress(raw.read_bytes())
    script, *arguments = SCRIPTS[name]
    made_by = " ".join([Path(script).name, *arguments, f"(chunks of {CHUNK_SIZE})"])
    # No name and no time in the header: the same trace gives the same file.
    packed = gzip.compress(strip(trace, made_by), 9, mtime=0)
    if len(packed) > _MOST_BYTES:
        sys.exit(f"{name}: {len(packed)} bytes are too many to keep")
    (HERE / f"{name}.trace.gz").write_bytes(packed)
    print(f"{name}: {len(packed)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)}")
    for name in parser.parse_args().names or SCRIPTS:
        if name not in SCRIPTS:
            parser.error(f"there is no script for {name}")
        record(name)


if __name__ == "__main__":
    main()
