"""Compares the time of batches in Schedule2BW and in torch's Schedule1F1B, which flushes the
pipeline after each: `throughput.py [--stages N] [--micro-batches N ...]`, run by hand with memtide
on Python's path.

A stage's compute is a timed wait, so that stages do not share this machine's processors: forward
waits once, backward twice. With d stages and m micro-batches, a flush costs (m + d - 1) / m.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import memtide.pipeline
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

_WAIT_S = 0.01
_ROUNDS = 3


class _Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        time.sleep(_WAIT_S)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * _WAIT_S)
        return gradient


class _Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Waits.apply(x * self.weight)


def _batches(count: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield torch.ones(rows, 8), torch.zeros(rows, 8)


def _seconds(name: str, rank: int, stages: int, micro_batches: int, batches: int) -> float:
    """The time of a batch, without the first two."""
    module = _Stage()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    ends = []
    if name == "2BW":
        schedule = memtide.pipeline.Schedule2BW(
            stage, optimizer, micro_batches, nn.functional.mse_loss
        )
        ends = [time.monotonic() for _ in schedule.run(_batches(batches, micro_batches))]
    else:
        flushing = Schedule1F1B(stage, micro_batches, nn.functional.mse_loss)
        for inputs, target in _batches(batches, micro_batches):
            optimizer.zero_grad()
            args = (inputs,) if rank == 0 else ()
            flushing.step(*args, target=target if rank == stages - 1 else None)
            optimizer.step()
            dist.barrier()
            ends.append(time.monotonic())
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def _run(rank: int, stages: int, counts: list[int], out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.met", rank=rank, world_size=stages)
    found = []
    for count in counts:
        batches = max(6, 96 // count)
        for _ in range(_ROUNDS):
            pair = [_seconds(name, rank, stages, count, batches) for name in ("1F1B", "2BW")]
            found.append((count, *pair))
    if rank == 0:
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 16, 64])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/result"
        torch.multiprocessing.spawn(_run, (chosen.stages, chosen.micro_batches, out), chosen.stages)
        found = json.loads(Path(out).read_text(encoding="utf-8"))
    print("| micro-batches | 1F1B, s | 2BW, s | faster | a flush costs | part of it |")
    print("|---|---|---|---|---|---|")
    for count, flushing, endless in found:
        most = (count + chosen.stages - 1) / count
        print(
            f"| {count} | {flushing:.3f} | {endless:.3f} | {flushing / endless:.3f} x "
            f"| {most:.3f} x | {flushing / endless / most:.3f} |"
        )


if __name__ == "__main__":
    main()
