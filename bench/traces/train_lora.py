"""Trains low-rank adapters of a frozen GPT (LoRA): its base is read and never written."""

from __future__ import annotations

import torch
from common import draw, read_corpus, read_options, train
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, RANK = 256, 512, 6, 8
BATCH, LENGTH = 4, 64


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter of two small layers beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH).requires_grad_(False) for _ in range(2))
        self.mix, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.mlp = nn.Sequential(Adapted(WIDTH, 4 * WIDTH), nn.GELU(), Adapted(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.norm1(x)).view(batch, length, 3, width // 64, 64).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class AdaptedGpt(nn.Module):
    """Maps bytes to the logits of the next bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.bytes(text)))


def main() -> None:
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    model = AdaptedGpt()
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = draw(read_corpus(), BATCH, LENGTH + 1)

    def next_loss() -> torch.Tensor:
        text = next(batches)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    train(model, torch.optim.AdamW(adapters, lr=1e-3), options.steps, next_loss)


if __name__ == "__main__":
    main()
