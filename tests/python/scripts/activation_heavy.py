"""A GPT whose activations are most of what it needs. BLOCKS, BATCH and STEPS are in the
environment: each block keeps some 17 MiB of activations a sequence."""

from __future__ import annotations

import os

import torch
from common import finish
from torch import nn

WIDTH, HEADS, LENGTH, WORDS = 256, 4, 512, 256
blocks, batch, steps = (int(os.environ[name]) for name in ("BLOCKS", "BATCH", "STEPS"))


class Block(nn.Module):
    """Attention and a perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[0], LENGTH, 3, HEADS, WIDTH // HEADS)
        parts = self.attention(self.before_attention(x)).view(shape).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(x.shape))
        return x + self.perceptron(self.before_perceptron(x))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, WORDS)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(steps):
    words = torch.randint(WORDS, (batch, LENGTH + 1))
    logits = model(words[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
