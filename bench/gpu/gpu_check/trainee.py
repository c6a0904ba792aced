"""Trains a GPT in phases, plain PyTorch that does not mention memtide, and logs each step.

    trainee.py --layers 24 --width 2048 --phases 4,4c,32 --steps 6 --device cuda --log FILE

A phase is a number of sequences in each step, with "c" if gradients are clipped. Later phases go on
with the model of the ones before, so a run of the first phases alone repeats their losses. Options
ask for what else scripts do, such as LoRA (variants.py).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from train_gpt import Gpt, draw_batch, read_corpus
from variants import adapt, checkpoint_blocks

# The gradients' norm where they are clipped, smaller than theirs in the first steps.
_LIMIT = 0.5
# At ten times this rate losses swing, and other roundings of a step grow to differences of 5%.
_RATE = 3e-5
_emptied = 0


def count_empty_cache(module: Any) -> None:
    """Counts all calls of the device's empty_cache in this process."""
    empty_cache = getattr(module, "empty_cache", None)
    if empty_cache is None:  # torch.cpu has none.
        return

    def counted(*arguments: Any) -> Any:
        global _emptied
        _emptied += 1
        return empty_cache(*arguments)

    module.empty_cache = counted


def be_deterministic() -> None:
    """Makes torch repeat its bits: by default the backward pass of attention on a GPU adds up in
    the order in which its blocks end. Memory that nothing has written needs no filling for that."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def join_alone(device: str) -> None:
    """Makes a group of this process alone: its collectives change no value."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1)


def build(options: argparse.Namespace) -> Gpt:
    """The model that the options ask for."""
    model = Gpt(options.layers, options.width, options.context)
    if options.lora:
        adapt(model.blocks, options.lora, bits=options.quantized)
    model.to(options.device, getattr(torch, options.dtype))
    if options.checkpoint:
        checkpoint_blocks(model.blocks)
    if options.compile:
        for block in model.blocks:
            block.compile(backend=options.compile)
    return model


def train(options: argparse.Namespace) -> None:
    """Trains all phases."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    corpus = read_corpus()
    model = build(options)
    if options.collectives:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_RATE, foreach=True)
    casts = torch.autocast(torch.device(options.device).type, torch.bfloat16, options.autocast)
    module = torch.get_device_module(options.device)
    with options.log.open("w", encoding="utf-8") as log:
        for phase in options.phases.split(","):
            batch, clips = int(phase.rstrip("c")), phase.endswith("c")
            for step in range(options.steps):
                before, began = _emptied, time.perf_counter()
                optimizer.zero_grad()
                inputs, targets = draw_batch(corpus, batch, options.context, generator)
                with casts:
                    logits = model(inputs.to(options.device))
                loss = functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets.flatten().to(options.device)
                )
                loss.backward()
                if options.collectives:
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad)
                norm = None
                if clips:
                    norm = torch.nn.utils.clip_grad_norm_(trained, _LIMIT)
                optimizer.step()
                entry = {"phase": phase, "step": step, "loss": loss.item().hex()}
                entry["seconds"] = time.perf_counter() - began
                entry["norm"] = None if norm is None else norm.item().hex()
                entry["emptied"] = _emptied - before
                # torch.cpu has no such allocator.
                entry["reserved_bytes"] = getattr(module, "memory_reserved", int)()
                log.write(json.dumps(entry) + "\n")
                log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--phases", default="4")
    parser.add_argument("--steps", type=int, default=6, help="in each phase")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--collectives", action="store_true", help="average over one process")
    parser.add_argument("--autocast", action="store_true", help="compute in bfloat16")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: none")
    parser.add_argument("--quantized", type=int, default=0, help="bits of --lora's base")
    parser.add_argument("--checkpoint", action="store_true", help="compute blocks twice")
    parser.add_argument("--compile", help="compile blocks, with this backend")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    be_deterministic()
    count_empty_cache(torch.get_device_module(options.device))
    if options.collectives:
        join_alone(options.device)
    train(options)
    if options.collectives:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
