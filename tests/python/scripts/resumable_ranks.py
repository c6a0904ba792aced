"""DistributedDataParallel that is resumed, of a launcher or its own: `resumable_ranks.py STEPS`.

Each rank appends a line to RESULT with its number: "start" with the step from which it goes on when
it has been resumed, and each step with its loss. KILLS has a word for each attempt, "4:1" or "-":
its rank 1 is killed in step 4, KILL_AFTER_S after the backward pass. After the optimizer's step of
WAIT_AT, if it is set, each rank waits for the file WAIT_FOR. Rank 0 runs the Python program AT_END
of the environment while all ranks still live.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import memtide
import torch
import torch.distributed as dist
from common import leave
from sequence_point import wait_for
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WIDTH = 512


def train(steps: int) -> None:
    rank = dist.get_rank()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    kills = os.environ.get("KILLS", "").split()
    kill = kills[attempt].split(":") if attempt < len(kills) else ["-"]
    wait_at = int(os.environ.get("WAIT_AT", -1))
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.GELU())]
    whole = nn.Sequential(*layers, nn.Linear(_WIDTH, 10))
    # Otherwise the buckets change in the second iteration of a process, and with them the order in
    # which more than two ranks add gradients up.
    model = DistributedDataParallel(whole, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    result = Path(f"{os.environ['RESULT']}{rank}")
    with result.open("a", buffering=1, encoding="utf-8") as lines:
        first = memtide.resumed_step()
        lines.write(f"start {first}\n")
        for step in range(first, steps):
            torch.manual_seed(100 * step + rank)
            scores = model(torch.randn(16, _WIDTH))
            loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (16,)))
            optimizer.zero_grad()
            loss.backward()
            lines.write(f"{step} {loss.item().hex()}\n")
            dies = kill == [str(step), str(rank)]
            if dies:
                delay = float(os.environ["KILL_AFTER_S"])
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            optimizer.step()
            if dies:
                signal.pause()
            if step == wait_at:
                wait_for(Path(os.environ["WAIT_FOR"]))
    dist.barrier()
    if rank == 0 and "AT_END" in os.environ:
        subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)


def start(rank: int, steps: int) -> None:
    """Trains in a process that `spawn` has started."""
    meeting = f"file://{os.environ['RESULT']}.met"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train(steps)
    leave()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(int(sys.argv[1]))
        leave()
    else:
        Path(f"{os.environ['RESULT']}.met").unlink(missing_ok=True)
        torch.multiprocessing.spawn(start, (int(sys.argv[1]),), nprocs=2)
