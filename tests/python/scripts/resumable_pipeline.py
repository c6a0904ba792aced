"""A pipeline that goes on after one of its stages was killed: `resumable_pipeline.py BATCHES`.

Each rank appends a line to RESULT with its number: "start" with the batch it begins with, and each
batch with its loss, in the last stage, and a digest of the stage's parameters after the step. KILLS
has a word for each attempt, "2:1:3": rank 2 is killed in batch 1, before the forward of micro-batch
3. Instead of a micro-batch, "step" is the moment before the optimizer steps, and "later" is
KILL_AFTER_S after that. All stages skip the step of batch SKIP.
"""

import argparse
import os
import signal
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import memtide
import memtide.pipeline
import torch
import torch.distributed as dist
from common import digest, leave
from pipelined import batches, loss_of, optimizer_of, stages
from torch.distributed.pipelining import PipelineStage

_MICRO_BATCHES = 5


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_of(rank: int) -> tuple[int, str]:
    """The batch and the moment in which this process is killed; never by default."""
    words = os.environ.get("KILLS", "").split()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < len(words):
        number, batch, moment = words[attempt].split(":")
        if int(number) == rank:
            return int(batch), moment
    return -1, ""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = memtide.resumed_step()
    killed_in, moment = kill_of(rank)
    skipped = int(os.environ.get("SKIP", -1))
    recomputed = "RECOMPUTED" in os.environ
    module = stages(argparse.Namespace(recomputed=recomputed))[rank]
    optimizer = optimizer_of("adamw", module)
    calls = -1  # Torch computes one micro-batch more, from which it infers shapes.
    batch = first

    def before_forward(*_: Any) -> None:
        nonlocal calls
        if calls >= 0:
            its_batch, number = divmod(calls, _MICRO_BATCHES)
            if (first + its_batch, str(number)) == (killed_in, moment):
                die()
        calls += 1

    def before_step(*_: Any) -> None:
        if batch == killed_in and moment == "step":
            die()
        if batch == killed_in and moment == "later":
            threading.Timer(float(os.environ["KILL_AFTER_S"]), die).start()
        if batch == skipped:
            optimizer.zero_grad()

    module.register_forward_pre_hook(before_forward)
    optimizer.register_step_pre_hook(before_step)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = memtide.pipeline.Schedule2BW(stage, optimizer, _MICRO_BATCHES, loss_of)
    data = batches(argparse.Namespace(batches=int(sys.argv[1]), micro_batches=_MICRO_BATCHES))
    with Path(f"{os.environ['RESULT']}{rank}").open("a", buffering=1, encoding="utf-8") as lines:
        lines.write(f"start {first}\n")
        for loss in schedule.run(islice(data, first, None)):
            shown = "-" if loss is None else loss.item().hex()
            lines.write(f"{batch} {shown} {digest(module.state_dict().values())}\n")
            batch += 1


if __name__ == "__main__":
    main()
    leave()
