"""Trains a model of Llama-3-8B's shape on random tokens: plain PyTorch, without memtide in it.

    llama.py --device cuda --log FILE          plainly, or under `memtide run`
    llama.py --device cuda --log FILE --deepspeed    under DeepSpeed's ZeRO-Offload
    llama.py --device cuda --log FILE --fsdp --dtype float32    under FSDP2 with CPU offload

Parameters, gradients and both moments are bfloat16, or, with --dtype float32, computed as bfloat16
under --autocast. Each block, unless --no-checkpoint is given, and each piece of the loss are
computed again in backward, so that a step of 128K tokens has little in memory besides the states.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_ROTATION_BASE = 500000.0


class Block(nn.Module):
    """Attention with grouped keys and values, and a gated MLP, each behind an RMSNorm."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width, self.heads, self.kv_heads = options.width, options.heads, options.kv_heads
        self.size = width // self.heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, options.hidden, bias=False)
        self.up = nn.Linear(width, options.hidden, bias=False)
        self.down = nn.Linear(options.hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.attend(self.norm1(x), cosine, sine))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def attend(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Causal self-attention."""
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, heads, self.size).transpose(1, 2)
            for layer, heads in (
                (self.query, self.heads),
                (self.key, self.kv_heads),
                (self.value, self.kv_heads),
            )
        )
        mixed = functional.scaled_dot_product_attention(
            rotated(query, cosine, sine),
            rotated(key, cosine, sine),
            value,
            is_causal=True,
            enable_gqa=True,
        )
        return mixed.transpose(1, 2).reshape(batch, length, -1)


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Llama(nn.Module):
    """Tokens and targets in, the mean loss out."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)
        self.size = options.width // options.heads
        self.checkpoints, self.pieces = not options.no_checkpoint, options.loss_pieces
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        half = torch.arange(0, self.size, 2, device=x.device, dtype=torch.float32) / self.size
        places = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)
        angles = places[:, None] * (_ROTATION_BASE**-half)[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            if self.checkpoints:
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        x = self.norm(x).flatten(0, 1)
        pieces = zip(x.chunk(self.pieces), targets.flatten().chunk(self.pieces), strict=True)
        losses = [checkpoint(self.loss, *piece, use_reentrant=False) for piece in pieces]
        return torch.stack(losses).sum() / targets.numel()

    def loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of a piece's losses."""
        return functional.cross_entropy(self.head(x).float(), targets, reduction="sum")


def micro_batches(options: argparse.Namespace, generator: torch.Generator) -> Any:
    """The micro-batches of a step: random tokens, and the same one token later."""
    shape = (options.sequences, options.sequence + 1)
    for _ in range(options.micro_batches):
        rows = torch.randint(options.vocabulary, shape, generator=generator).to(options.device)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train(options: argparse.Namespace) -> None:
    """Trains, and logs each step."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    torch.set_default_dtype(getattr(torch, options.dtype))
    with torch.device(options.device):
        model = Llama(options)
    if options.compile:
        for block in model.blocks:
            block.compile(backend=options.compile)
    make = plain_step
    if options.deepspeed or options.fsdp:
        make = deepspeed_step if options.deepspeed else fsdp_step
    step = make(options, model)
    with options.log.open("w", encoding="utf-8") as log:
        for number in range(options.steps):
            torch.use_deterministic_algorithms(number < options.deterministic_steps)
            began = time.perf_counter()
            loss = step(micro_batches(options, generator))
            entry = {"step": number, "loss": loss.hex(), "norm": None}
            entry["seconds"] = time.perf_counter() - began
            log.write(json.dumps(entry) + "\n")
            log.flush()


def plain_step(options: argparse.Namespace, model: Llama) -> Any:
    """A function that makes a step of micro-batches, and returns the last one's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    casts = torch.autocast(torch.device(options.device).type, torch.bfloat16, options.autocast)

    def step(batches: Any) -> float:
        for tokens, targets in batches:
            with casts:
                loss = model(tokens, targets) / options.micro_batches
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def fsdp_step(options: argparse.Namespace, model: Llama) -> Any:
    """The same under FSDP2, with states in host memory, which the CPU steps."""
    from torch.distributed import HashStore, device_mesh, fsdp, init_process_group

    on_gpu = options.device == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    how: Any = {
        "mesh": device_mesh.init_device_mesh(options.device, (1,)),
        "mp_policy": fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": fsdp.CPUOffloadPolicy(pin_memory=on_gpu),
    }
    for module in (*model.blocks, model):
        fsdp.fully_shard(module, **how)
    return plain_step(options, model)


def deepspeed_step(options: argparse.Namespace, model: Llama) -> Any:
    """The same under ZeRO-Offload, whose optimizer has fp32 states in host memory."""
    # DeepSpeed's launcher would set these variables; here is one process without it.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(alone | {"MASTER_PORT": os.environ.get("MASTER_PORT", "29512")})
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": options.sequences,
        "gradient_accumulation_steps": options.micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "contiguous_gradients": True,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    }
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[
        0
    ]

    def step(batches: Any) -> float:
        for tokens, targets in batches:
            loss = engine(tokens, targets)
            engine.backward(loss)
            engine.step()
        return float(loss.item())

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, value in (
        ("layers", 32),
        ("width", 4096),
        ("heads", 32),
        ("kv-heads", 8),
        ("hidden", 14336),
        ("vocabulary", 128256),
        ("sequence", 1024),
        ("sequences", 16),
        ("micro-batches", 8),
        ("steps", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    # The backward pass of attention on a GPU adds up in the order in which its blocks end.
    parser.add_argument(
        "--deterministic-steps",
        type=int,
        default=0,
        help="the first steps, which repeat their bits",
    )
    parser.add_argument("--no-checkpoint", action="store_true", help="compute blocks once")
    # The logits of a piece alone are in memory.
    parser.add_argument("--loss-pieces", type=int, default=8)
    parser.add_argument("--compile", help="compile blocks, with this backend")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--autocast", action="store_true", help="compute in bfloat16")
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--log", type=Path, required=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
