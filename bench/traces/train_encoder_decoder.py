"""Trains an encoder and a decoder to write a text backwards."""

from __future__ import annotations

import torch
from common import draw, read_options, read_words, train
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS = 4096, 384, 4
BATCH, LENGTH = 4, 48
BEGINNING = 1


class EncoderDecoder(nn.Module):
    """Maps the source's words and the target's words so far to the logits of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, WIDTH // 64, LAYERS, LAYERS, 4 * WIDTH, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def embed(self, words: torch.Tensor) -> torch.Tensor:
        return self.words(words) + self.positions(torch.arange(words.shape[1]))

    def forward(self, source: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(so_far.shape[1])
        states = self.transformer(
            self.embed(source), self.embed(so_far), tgt_mask=mask, tgt_is_causal=True
        )
        return self.head(states)


def main() -> None:
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    model = EncoderDecoder()
    batches = draw(read_words(VOCABULARY), BATCH, LENGTH)

    def next_loss() -> torch.Tensor:
        source = next(batches)
        target = source.flip(1)
        so_far = functional.pad(target[:, :-1], (1, 0), value=BEGINNING)
        return functional.cross_entropy(model(source, so_far).flatten(0, 1), target.flatten())

    train(model, torch.optim.AdamW(model.parameters(), lr=1e-4), options.steps, next_loss)


if __name__ == "__main__":
    main()
