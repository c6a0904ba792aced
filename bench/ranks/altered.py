"""Trains two ranks many times, each time with one bit of one gradient altered in the second rank:
`altered.py OUT OPTIONS`, with train.py's options and `trials`.

Before each trial, a line on stderr names it. Its ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
import train
from trials import LINE, flip_of


def start(rank: int, trial: int, out: str, options: dict[str, Any]) -> None:
    meeting = f"file://{out}.met{trial}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train.train(out, {**options, "flip": flip_of(trial, options["steps"])})
    dist.destroy_process_group()


if __name__ == "__main__":
    chosen = json.loads(sys.argv[2])
    context = torch.multiprocessing.get_context("fork")
    for number in range(chosen["trials"]):
        print(LINE, number, file=sys.stderr, flush=True)
        arguments = (number, sys.argv[1], chosen)
        ranks = [context.Process(target=start, args=(rank, *arguments)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"trial {number}: a rank failed")
