"""What the scripts of this folder share: text to learn from, options, and the training loop."""

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
    """How long to train, and from which seed."""
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
    """The corpus in words; the most frequent ones have numbers of their own, the others share 0."""
    words = bytes(read_corpus().tolist()).decode("utf-8", errors="replace").split()
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 2]
    # 1 is for whoever needs a mask or a beginning.
    numbers = {word: number for number, word in enumerate(frequent, 2)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def draw(tokens: torch.Tensor, batch: int, length: int) -> Iterator[torch.Tensor]:
    """Random stretches, (batch, length) at a time."""
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
