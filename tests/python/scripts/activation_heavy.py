"""A GPT whose activations are most of what it needs. BLOCKS, BATCH and STEPS are in the
environment: each block keeps some 17 MiB of activations a sequence. HOW is one of

- "plain": nothing else; so it is without HOW.
- "compiled": the script compiles each block.
- "generating": between steps, the model generates words, with caches that grow.
- "sharded": `fully_shard`, in ranks that a launcher starts; each writes its losses and shards.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, LENGTH, WORDS = 256, 4, 512, 256
GENERATED = 16
blocks, batch, steps = (int(os.environ[name]) for name in ("BLOCKS", "BATCH", "STEPS"))
how = os.environ.get("HOW", "plain")


class Block(nn.Module):
    """Attention and a perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: tuple[torch.Tensor, ...] = ()  # Keys and values of what is generated.
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        parts = self.attention(self.before_attention(x)).view(shape).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if self.cache:
            key, value = (torch.cat(both, 2) for both in zip(self.cache, (key, value), strict=True))
        if not self.training:
            self.cache = (key, value)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=query.shape[2] > 1
        )
        x = x + self.projection(attended.transpose(1, 2).reshape(x.shape))
        return x + self.perceptron(self.before_perceptron(x))


def generate(model: nn.Sequential) -> int:
    """Generates words, and returns their sum."""
    model.eval()
    words = torch.randint(WORDS, (4 * batch, LENGTH // 4))
    total = 0
    with torch.no_grad():
        for _ in range(GENERATED):
            words = model(words)[:, -1:].argmax(-1)
            total += int(words.sum())
    for module in model.train():
        module.cache = ()
    return total


if how == "sharded":
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, WORDS)
)
for block in model[1:-1]:
    if how == "compiled":
        block.compile()
    elif how == "sharded":
        fully_shard(block)
if how == "sharded":
    fully_shard(model)
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
    if how == "generating":
        losses.append(generate(model))
if how == "sharded":
    os.environ["RESULT"] += os.environ["RANK"]
    shards = {name: each.to_local() for name, each in model.state_dict().items()}
    finish(losses, SimpleNamespace(state_dict=lambda: shards))
    del model, optimizer, block, logits, loss
    leave()
else:
    finish(losses, model)
