"""Trains the GPT of train_gpt.py as a pipeline: a stage of it in each process, without a flush
between batches (PipeDream-2BW).

    memtide run torchrun --nproc-per-node 4 examples/train_pipeline.py --steps 20

With `--width-of-pipelines 2`, eight processes are two pipelines beside each other, and average
their gradients. With `--plan`, memtide.pipeline.plan cuts the stages by what each block takes on
this machine, instead of into equally many blocks, and chooses whether stages compute their forwards
again in backward. With `--share 0.1`, stages send each other the largest tenth of the elements of
their activations. Without `memtide run` everything is in ordinary memory, with the same losses.

    memtide run --job gpt torchrun --nproc-per-node 4 --max-restarts 3 examples/train_pipeline.py

When a stage dies, all of them go on from the last step that was committed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import memtide
import memtide.pipeline
import torch
import torch.distributed as dist
import train_gpt
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

# The speed of gloo between processes of one machine, about; stages send little.
LOOPBACK = "1GB/s"


class Stage(nn.Module):
    """The blocks `first` to `end` (exclusive) of the GPT; with the first block the embeddings, too,
    with the last one the head."""

    def __init__(self, gpt: train_gpt.Gpt, first: int, end: int) -> None:
        super().__init__()
        is_last = end == len(gpt.blocks)
        self.bytes = gpt.bytes if first == 0 else None
        self.positions = gpt.positions if first == 0 else None
        self.blocks = gpt.blocks[first:end]
        self.norm = gpt.norm if is_last else None
        self.head = gpt.head if is_last else None

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


def planned(
    options: argparse.Namespace, gpt: train_gpt.Gpt, stages: int
) -> tuple[Sequence[int], bool]:
    """The first block of each stage, and the number of blocks; and whether stages compute their
    forwards again. Rank 0 makes the plan for all ranks, and prints it."""
    chosen: list[tuple[Sequence[int], bool]] = [((), False)]
    if dist.get_rank() == 0:
        found = plan(options, gpt, stages)
        print(f"plan: {found}", flush=True)
        chosen = [(found.cuts, found.shape.recompute)]
    dist.broadcast_object_list(chosen)
    return chosen[0]


def plan(options: argparse.Namespace, gpt: train_gpt.Gpt, stages: int) -> memtide.pipeline.Plan:
    """The plan of this number of stages for processes that share this machine's memory."""
    blocks = nn.Sequential(*(Stage(gpt, n, n + 1) for n in range(len(gpt.blocks))))
    inputs = torch.zeros(options.batch, options.context, dtype=torch.long)
    ranks = dist.get_world_size()
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ranks
    return memtide.pipeline.plan(
        memtide.pipeline.measured_layers(blocks, inputs),
        memtide.pipeline.Devices(
            count=ranks,
            memory=options.memory or f"{memory_bytes}B",
            per_server=ranks,
            inside=LOOPBACK,
            across=LOOPBACK,
        ),
        options.batch * options.width_of_pipelines,
        schedules=["2bw"],
        fixed=memtide.pipeline.Fixed(
            width=options.width_of_pipelines,
            depth=stages,
            micro_batch=options.batch // options.micro_batches,
        ),
    )


def stage_of(options: argparse.Namespace, number: int, stages: int) -> tuple[Stage, bool]:
    """One stage, and whether it computes its forward again in backward. The rest of the GPT is
    freed on return."""
    gpt = train_gpt.Gpt(options.layers, options.width, options.context)
    cuts: Sequence[int] = [n * options.layers // stages for n in range(stages + 1)]
    recompute = False
    if options.plan:
        cuts, recompute = planned(options, gpt, stages)
    return Stage(gpt, cuts[number], cuts[number + 1]), recompute


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
    module, recompute = stage_of(options, number, stages)
    schedule = memtide.pipeline.Schedule2BW(
        PipelineStage(module, number, stages, torch.device("cpu"), group=pipelines[pipeline]),
        torch.optim.AdamW(module.parameters(), lr=3e-4),
        options.micro_batches,
        loss_of,
        width=widths[number] if options.width_of_pipelines > 1 else None,
        send=None if options.share is None else memtide.pipeline.Largest(options.share),
        recompute=recompute,
    )
    first = memtide.resumed_step()  # 0, unless a job is resumed.
    batches = islice(batches_of(options, pipeline), first, None)
    began = time.perf_counter()
    for step, loss in enumerate(schedule.run(batches), first + 1):
        if loss is not None and pipeline == 0:
            seconds = (time.perf_counter() - began) / (step - first)
            print(f"step {step:4d}  loss {loss.item():.4f}  {seconds:.2f} s", flush=True)


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
    parser.add_argument("--plan", action="store_true", help="cut the stages by measured times")
    parser.add_argument("--memory", help="of each process, for the plan; an equal part by default")
    parser.add_argument("--share", type=float)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
