"""Prints the CPU seconds of a step of a model of train.py: `cpu_of_step.py NAME STEPS`.

They are those of all threads of the process, over the steps after the first ten.
"""

from __future__ import annotations

import sys
import time

from train import MODELS

_WARM_UP_STEPS = 10


def main() -> None:
    step, steps = MODELS[sys.argv[1]](), int(sys.argv[2])
    for _ in range(_WARM_UP_STEPS):
        step()
    began_s = time.process_time()
    for _ in range(steps):
        step()
    print((time.process_time() - began_s) / steps)


if __name__ == "__main__":
    main()
