"""Compares what stages send each other, and what a small GPT learns, where only the largest
elements of activations and their gradients travel: `thinned.py [--stages N] [--steps N]`, run by
hand with memtide on Python's path.

Loss is the mean of the last 50 steps, of several seeds. The rate rises for the first 50
steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import memtide.pipeline
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt
import train_pipeline

_LAST_STEPS = 50
_RATE, _WARM_UP_STEPS = 1e-3, 50
_BATCH, _CONTEXT, _MICRO_BATCHES = 16, 64, 4
_SHARES = (1.0, 0.3, 0.1, 0.03)


def _losses(
    rank: int, stages: int, steps: int, seed: int, share: float
) -> tuple[list[float], list[int]]:
    """The last stage's losses, and bytes: those sent, and those of whole tensors."""
    torch.manual_seed(seed)
    gpt = train_gpt.Gpt(layers=stages, width=96, context=_CONTEXT)
    module = train_pipeline.Stage(gpt, rank, rank + 1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=_RATE)
    rates = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1 / _WARM_UP_STEPS, total_iters=_WARM_UP_STEPS
    )
    schedule = memtide.pipeline.Schedule2BW(
        PipelineStage(module, rank, stages, torch.device("cpu")),
        optimizer,
        _MICRO_BATCHES,
        train_pipeline.loss_of,
        send=memtide.pipeline.Largest(share),
    )
    generator = torch.Generator().manual_seed(seed)
    corpus = train_gpt.read_corpus()
    batches = (train_gpt.draw_batch(corpus, _BATCH, _CONTEXT, generator) for _ in range(steps))
    losses = []
    for loss in schedule.run(batches):
        rates.step()
        losses += [] if loss is None else [loss.item()]
    assert schedule.sent is not None
    return losses, [schedule.sent.bytes, schedule.sent.whole_bytes]


def _run(rank: int, chosen: argparse.Namespace, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}.met", rank=rank, world_size=chosen.stages
    )
    for share in _SHARES:
        means, total = [], torch.zeros(2, dtype=torch.int64)
        for seed in range(chosen.seeds):
            losses, sent = _losses(rank, chosen.stages, chosen.steps, seed, share)
            means.append(statistics.fmean(losses[-_LAST_STEPS:]) if losses else 0.0)
            total += torch.tensor(sent)
        dist.all_reduce(total)
        if rank == chosen.stages - 1:
            part = float(total[0] / total[1])
            around = (max(means) - min(means)) / 2
            row = f"| {share:.0%} | {part:.1%} | {statistics.fmean(means):.4f} (± {around:.4f}) |"
            print(row, flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    print("| share | bytes, of whole tensors' | loss |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_run, (chosen, f"{folder}/result"), chosen.stages)


if __name__ == "__main__":
    main()
