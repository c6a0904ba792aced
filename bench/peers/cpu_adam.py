"""Times AdamW of DeepSpeed's CPU Adam and of the daemon's kernels by turns, on 64 M parameters.

    cpu_adam.py LIBRARY [--rounds N]

Parameters are fp32. Both run in one process with the same number of threads; DeepSpeed steps in
place and the kernels out of place, as in bench/training/torch_steps.py, whose loop this uses.
LIBRARY is libmemtide_optimizer_kernels.so. Prints one line of samples for each figure, as all
programs of bench/ do. Called by bench/peers/cpu_adam.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import samples  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402
from training import torch_steps  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    theirs = DeepSpeedCPUAdam(torch_steps.make_parameters(), adamw_mode=True, **torch_steps.OPTIONS)
    theirs.step()  # Creates the states.
    ours = torch_steps.KernelSteps(arguments.library, theirs)
    samples.show(torch_steps.take_turns({"optimizer.deepspeed": theirs}, ours, arguments.rounds))


if __name__ == "__main__":
    main()
