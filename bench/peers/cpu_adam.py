"""DeepSpeed's CPU Adam (AdamW) against the daemon's kernels: 64 M fp32 parameters, by turns.

    cpu_adam.py LIBRARY [--rounds N]

In one process, with as many threads; DeepSpeed's step is in place, ours out of place, as in
bench/torch_steps.py, which this goes on from. LIBRARY: libmemtide_optimizer_kernels.so. Prints the
samples as the other programs of bench/ do, a line a figure. Called by bench/peers/cpu_adam.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import samples  # noqa: E402
import torch_steps  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    told = parser.parse_args()
    theirs = DeepSpeedCPUAdam(torch_steps.make_parameters(), adamw_mode=True, **torch_steps.OPTIONS)
    theirs.step()  # Makes the states.
    ours = torch_steps.KernelSteps(told.library, theirs)
    samples.show(torch_steps.take_turns({"optimizer.deepspeed": theirs}, ours, told.rounds))


if __name__ == "__main__":
    main()
