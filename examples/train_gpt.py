"""Trains a small GPT, byte by byte, on the sources of Python's own standard library.

Plain PyTorch: runs on any machine, needs no download, and gives the same losses every time.

    python examples/train_gpt.py --steps 20
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
CORPUS_BYTES = 8 * 2**20


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(x).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Bytes in, logits of the next bytes out."""

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_corpus() -> torch.Tensor:
    """The first 8 MiB of the standard library's sources, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    corpus = bytearray()
    for file in sorted(root.rglob("*.py")):
        if "site-packages" in file.parts or "dist-packages" in file.parts:
            continue
        corpus += file.read_bytes()
        if len(corpus) >= CORPUS_BYTES:
            break
    return torch.frombuffer(corpus[:CORPUS_BYTES], dtype=torch.uint8)


def draw_batch(
    corpus: torch.Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random stretches of the corpus, and the same one byte later."""
    starts = torch.randint(len(corpus) - context - 1, (batch,), generator=generator)
    rows = torch.stack([corpus[start : start + context + 1] for start in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def train(options: argparse.Namespace, log: TextIO | None) -> None:
    """Trains and reports each step."""
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    corpus = read_corpus()
    model = Gpt(options.layers, options.width, options.context)
    model.to(options.device, getattr(torch, options.dtype))
    compute = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {len(corpus) / 2**20:.1f} MiB of text", flush=True)
    for step in range(1, options.steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        inputs, targets = draw_batch(corpus, options.batch, options.context, generator)
        logits = compute(inputs.to(options.device))
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten().to(options.device)
        )
        loss.backward()
        optimizer.step()
        value, seconds = loss.item(), time.perf_counter() - began
        print(f"step {step:4d}  loss {value:.4f}  {seconds:.2f} s", flush=True)
        if log is not None:
            entry = {"step": step, "loss": value.hex(), "seconds": seconds}
            log.write(json.dumps(entry) + "\n")
            log.flush()
    if options.checkpoint is not None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, options.checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where it trains, such as cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--log", type=Path, help="write losses and seconds here, a line a step")
    parser.add_argument("--checkpoint", type=Path, help="save model and optimizer here at the end")
    options = parser.parse_args()
    if options.log is None:
        train(options, None)
    else:
        with options.log.open("w", encoding="utf-8") as log:
            train(options, log)


if __name__ == "__main__":
    main()
