"""The text to train on, the options, and the training loop of all scripts of this folder."""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

CORPUS_BYTES = 2 * 2**20


def read_options(description: str | None) -> argparse.Namespace:
    """Parses --steps and --seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_corpus() -> torch.Tensor:
    """The first bytes of the standard library's sources, in the order of their names."""
    corpus = bytearray()
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        corpus += file.read_bytes()
        if len(corpus) >= CORPUS_BYTES:
            break
    return torch.frombuffer(corpus[:CORPUS_BYTES], dtype=torch.uint8)


def read_words(vocabulary: int) -> torch.Tensor:
    """The corpus as numbers of words: 2 and more for the most frequent words, 0 for all others."""
    words = bytes(read_corpus().tolist()).decode("utf-8", errors="replace").split()
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 2]
    # Scripts use 1 as the mask, or as the beginning of a text.
    numbers = {word: number for number, word in enumerate(frequent, 2)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def draw(tokens: torch.Tensor, batch: int, length: int) -> Iterator[torch.Tensor]:
    """Yields batches of random pieces of the text, as tensors of (batch, length)."""
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(tokens) - length, (batch,), generator=generator)
        yield torch.stack([tokens[start : start + length] for start in starts.tolist()]).long()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    next_loss: Callable[[], torch.Tensor],
) -> None:
    """Trains and reports each step."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters", flush=True)
    for step in range(1, steps + 1):
        began = time.perf_counter()
        loss = next_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        print(f"step {step:3d}  loss {loss.item():.4f}  {seconds:.2f} s", flush=True)
