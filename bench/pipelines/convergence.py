"""Compares what a GPT of a million parameters learns with PipeDream-2BW and without:
`convergence.py [--steps N]`, run by hand.

One process applies to each step the gradient at the version before the newest one. Pipelines do the
same, to the bit (tests/python/pipeline). Loss is the mean of the last 100 steps. The rate rises for
the first 100 steps, as in the trainings of the paper: a delay costs most while weights change fast.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

_SEEDS = 3
_LAST_STEPS = 100
_RATE, _WARM_UP_STEPS = 3e-4, 100
_BATCH, _CONTEXT = 16, 64


def _loss(steps: int, seed: int, *, delayed: bool) -> float:
    torch.manual_seed(seed)
    model = train_gpt.Gpt(layers=5, width=128, context=_CONTEXT)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=_RATE)
    rates = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1 / _WARM_UP_STEPS, total_iters=_WARM_UP_STEPS
    )
    generator = torch.Generator().manual_seed(seed)
    corpus = train_gpt.read_corpus()
    before = [parameter.detach().clone() for parameter in parameters]
    losses = []
    for _ in range(steps):
        newest = [parameter.detach().clone() for parameter in parameters]
        if delayed:
            _set(parameters, before)
        inputs, targets = train_gpt.draw_batch(corpus, _BATCH, _CONTEXT, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if delayed:
            _set(parameters, newest)
        optimizer.step()
        rates.step()
        before = newest
        losses.append(loss.item())
    return statistics.fmean(losses[-_LAST_STEPS:])


def _set(parameters: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    print("| seed | plain | 2BW |\n|---|---|---|")
    rows = []
    for seed in range(_SEEDS):
        rows.append([_loss(steps, seed, delayed=delayed) for delayed in (False, True)])
        print(f"| {seed} | {rows[-1][0]:.4f} | {rows[-1][1]:.4f} |", flush=True)
    plain, delayed = (statistics.fmean(column) for column in zip(*rows, strict=True))
    print(f"| mean | {plain:.4f} | {delayed:.4f} |")


if __name__ == "__main__":
    main()
