"""Traces in files: compressed as they are (to keep, to explain, to replay), or for viewers."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from memtide import timeline
from memtide import trace as traces
from memtide.errors import UsageError

RAW_SUFFIX = ".trace.gz"


def check_output(path: Path, *, raw: bool = False) -> None:
    """UsageError: `export` would not know what to write there."""
    if not raw and path.suffix != ".json" and not path.name.endswith(RAW_SUFFIX):
        raise UsageError(
            f"a trace is written as .json (for viewers) or {RAW_SUFFIX} (to keep): '{path}' is "
            "neither"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(f"no directory to write '{path}' into")


def export(serialized: bytes, path: Path, *, raw: bool = False) -> None:
    """Writes a trace as the suffix of `path` says, or as it is (`raw`)."""
    if raw or path.name.endswith(RAW_SUFFIX):
        save(serialized, path)
    else:
        timeline.write(traces.parse(serialized), path)


def load(path: Path) -> bytes:
    """The serialized trace in a file that `save` wrote. UsageError: it is none."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"'{path}' cannot be read as a trace ({RAW_SUFFIX}): {error}") from error


def save(raw: bytes, path: Path) -> None:
    """Writes a serialized trace to a file: compressed, and the same bytes for the same trace."""
    path.write_bytes(gzip.compress(raw, mtime=0))
