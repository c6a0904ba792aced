"""Trains a mixture of experts: a gate sends each text to two of sixteen, and only those run.

The gate depends on the data, so no iteration is like the last. An expert that is not chosen has no
gradient, and the optimizer skips it.
"""

from __future__ import annotations

import torch
from common import draw, read_corpus, read_options, train
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS = 256, 256, 3
EXPERTS, CHOSEN = 16, 2
BATCH, LENGTH = 4, 64


class Expert(nn.Sequential):
    """One expert: two linear layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class Mixture(nn.Module):
    """Attention, then the experts that the gate chooses by the mean of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        # The noise keeps the gate from choosing the same few experts for all texts.
        scores = self.gate(y.mean(dim=1))
        _, chosen = (scores + torch.randn_like(scores)).topk(CHOSEN, dim=-1)
        weights = scores.softmax(dim=-1)
        result = torch.zeros_like(y)
        for expert in chosen.unique().tolist():
            rows = (chosen == expert).any(dim=-1).nonzero().squeeze(-1)
            weighted = self.experts[expert](y[rows]) * weights[rows, expert, None, None]
            result = result.index_add(0, rows, weighted)
        return x + result


class MixtureOfExperts(nn.Module):
    """Maps bytes to the logits of the next bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Mixture() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.bytes(text)))


def main() -> None:
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    model = MixtureOfExperts()
    batches = draw(read_corpus(), BATCH, LENGTH + 1)

    def next_loss() -> torch.Tensor:
        text = next(batches)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    train(model, torch.optim.AdamW(model.parameters(), lr=3e-4), options.steps, next_loss)


if __name__ == "__main__":
    main()
