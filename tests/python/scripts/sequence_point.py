"""Where a script waits for another process."""

import time
from pathlib import Path

# Only a script whose test has failed waits that long.
_PATIENCE_S = 300


def wait_for(*files: Path) -> None:
    """Returns when all of the files exist."""
    until = time.monotonic() + _PATIENCE_S
    while not all(file.exists() for file in files):
        if time.monotonic() > until:
            raise TimeoutError(f"not all of {list(map(str, files))} exist after {_PATIENCE_S} s")
        time.sleep(0.01)
