"""Trains a BERT-like encoder to fill in masked words; input and output share one embedding."""

from __future__ import annotations

import torch
from common import draw, read_options, read_words, train
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS = 16384, 384, 6
BATCH, LENGTH = 4, 64
MASK = 1


class Bert(nn.Module):
    """Maps words to the logits of the words at their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, WIDTH // 64, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        return self.head(self.encoder(self.words(words) + self.positions(positions)))


def main() -> None:
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    model = Bert()
    batches = draw(read_words(VOCABULARY), BATCH, LENGTH)

    def next_loss() -> torch.Tensor:
        words = next(batches)
        hidden = torch.rand(words.shape) < 0.15
        logits = model(words.masked_fill(hidden, MASK))
        return functional.cross_entropy(logits[hidden], words[hidden])

    train(model, torch.optim.AdamW(model.parameters(), lr=1e-4), options.steps, next_loss)


if __name__ == "__main__":
    main()
