"""Ranks train a GPT data-parallel on one device, plain PyTorch that does not mention memtide.

    torchrun --nproc-per-node 2 data_parallel.py --layers 24 --device cuda --result FILE

Each rank writes its steps to FILE and its number. Gradients are averaged over the CPU: ranks
may have a device in common, and one that no backend of torch.distributed knows. At the end rank 0
runs the Python code of --at-end, while all ranks have their states.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from train_gpt import Gpt, draw_batch, read_corpus
from trainee import be_deterministic


def average(model: torch.nn.Module) -> None:
    """Gradients become their mean over the ranks."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.float().cpu()
        dist.all_reduce(gradient)
        parameter.grad.copy_(gradient / dist.get_world_size())


def train(options: argparse.Namespace) -> None:
    """Trains all steps."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(rank)
    corpus = read_corpus()
    model = Gpt(options.layers, options.width, options.context)
    model.to(options.device, getattr(torch, options.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    with Path(f"{options.result}{rank}").open("w", encoding="utf-8") as log:
        for step in range(options.steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            inputs, targets = draw_batch(corpus, options.batch, options.context, generator)
            logits = model(inputs.to(options.device))
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(), targets.flatten().to(options.device)
            )
            loss.backward()
            average(model)
            optimizer.step()
            entry = {"step": step, "loss": loss.item().hex(), "norm": None}
            entry["seconds"] = time.perf_counter() - began
            log.write(json.dumps(entry) + "\n")
    # Work that another program does of its own accord after a step ends meanwhile.
    time.sleep(options.pause)
    dist.barrier()
    if rank == 0 and options.at_end:
        subprocess.run([sys.executable, "-c", options.at_end], check=True)
    dist.barrier()


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "context", "steps", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--at-end", default="")
    return parser.parse_args()


if __name__ == "__main__":
    be_deterministic()
    dist.init_process_group("gloo")
    train(parse())
    dist.destroy_process_group()
