"""Runs a training script that pauses after each optimizer step, so that two runs can alternate.

    alternate_steps.py DONE_FD GO_FD SCRIPT ARGS...

Writes a byte to DONE_FD when a step has ended, and reads one from GO_FD before the next, so two
runs take turns, step by step, on the same cores. Exits with status 0 when GO_FD is closed.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from torch.optim import Optimizer, optimizer


def main() -> None:
    done_fd, go_fd = int(sys.argv[1]), int(sys.argv[2])
    script = sys.argv[3]
    sys.argv = sys.argv[3:]

    def take_turns(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        os.write(done_fd, b"d")
        if not os.read(go_fd, 1):
            sys.exit(0)

    optimizer.register_optimizer_step_post_hook(take_turns)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
