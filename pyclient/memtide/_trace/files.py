"""Trace files: serialized and compressed (to store, explain and replay), or JSON for viewers."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from memtide._trace import model as traces
from memtide._trace import perfetto
from memtide._util.output_file import check_writable
from memtide.errors import UsageError

RAW_SUFFIX = ".trace.gz"


def check_output(path: Path, *, raw: bool = False) -> None:
    """UsageError: `export` cannot write to this path, or does not know the format of its suffix."""
    if not raw and path.suffix != ".json" and not path.name.endswith(RAW_SUFFIX):
        raise UsageError(
            f"a trace is written as .json (for viewers) or {RAW_SUFFIX} (to keep): '{path}' is "
            "neither"
        )
    check_writable(path)


def export(serialized: bytes, path: Path, *, raw: bool = False) -> None:
    """Writes a trace in the format of the suffix of `path`; with `raw`, serialized in any case."""
    if raw or path.name.endswith(RAW_SUFFIX):
        save(serialized, path)
    else:
        perfetto.write(traces.parse(serialized), path)


def load(path: Path) -> bytes:
    """The serialized trace in a file that `save` wrote. UsageError: it is no such file."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"'{path}' cannot be read as a trace ({RAW_SUFFIX}): {error}") from error


def save(raw: bytes, path: Path) -> None:
    """Compresses a serialized trace into a file; equal traces give equal files."""
    path.write_bytes(gzip.compress(raw, mtime=0))
