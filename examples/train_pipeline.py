"""Trains the GPT of train_gpt.py as a pipeline: a stage of it in each process, without a flush
between batches (PipeDream-2BW).

    memtide run torchrun --nproc-per-node 4 examples/train_pipeline.py --steps 20

With `--width-of-pipelines 2`, eight processes are two pipelines beside each other, and average
their gradients. With `--share 0.1`, stages send each other the largest tenth of the elements of
their activations. Without `memtide run` everything is in ordinary memory, with the same losses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import memtide.pipeline
import torch
import torch.distributed as dist
import train_gpt
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional


class Stage(nn.Module):
    """Some blocks of the GPT; in the first stage the embeddings, too, in the last one the head."""

    def __init__(self, gpt: train_gpt.Gpt, number: int, stages: int) -> None:
        super().__init__()
        count = len(gpt.blocks)
        first, end = number * count // stages, (number + 1) * count // stages
        self.bytes = gpt.bytes if number == 0 else None
        self.positions = gpt.positions if number == 0 else None
        self.blocks = gpt.blocks[first:end]
        self.norm = gpt.norm if number == stages - 1 else None
        self.head = gpt.head if number == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bytes is not None and self.positions is not None:
            x = self.bytes(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the bytes of a micro-batch."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batches_of(
    options: argparse.Namespace, pipeline: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one pipeline."""
    generator = torch.Generator().manual_seed(options.seed + pipeline)
    corpus = train_gpt.read_corpus()
    for _ in range(options.steps):
        yield train_gpt.draw_batch(corpus, options.batch, options.context, generator)


def train(options: argparse.Namespace) -> None:
    """Trains this process's stage. The last one of the first pipeline reports each step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = ranks // options.width_of_pipelines
    pipeline, number = divmod(rank, stages)
    # All ranks make all groups.
    pipelines = [
        dist.new_group(list(range(first, first + stages))) for first in range(0, ranks, stages)
    ]
    widths = [dist.new_group(list(range(n, ranks, stages))) for n in range(stages)]
    torch.manual_seed(options.seed)
    module = Stage(train_gpt.Gpt(options.layers, options.width, options.context), number, stages)
    schedule = memtide.pipeline.Schedule2BW(
        PipelineStage(module, number, stages, torch.device("cpu"), group=pipelines[pipeline]),
        torch.optim.AdamW(module.parameters(), lr=3e-4),
        options.micro_batches,
        loss_of,
        width=widths[number] if options.width_of_pipelines > 1 else None,
        send=None if options.share is None else memtide.pipeline.Largest(options.share),
    )
    began = time.perf_counter()
    for step, loss in enumerate(schedule.run(batches_of(options, pipeline)), 1):
        if loss is not None and pipeline == 0:
            seconds = time.perf_counter() - began
            print(f"step {step:4d}  loss {loss.item():.4f}  {seconds / step:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width-of-pipelines", type=int, default=1)
    parser.add_argument("--share", type=float)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
