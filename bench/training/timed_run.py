"""Runs a training script, and writes when each step of its optimizer ended.

    timed_run.py FILE SCRIPT ARGS...

FILE has a line for each step: the seconds of the monotonic clock, which processes share.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    file, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    with file.open("w", encoding="ascii") as times:

        def stamp(*of_the_step: Any) -> None:
            print(time.monotonic(), file=times, flush=True)

        register_optimizer_step_post_hook(stamp)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
