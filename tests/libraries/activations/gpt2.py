"""Trains a small GPT-2 of transformers, with dropout and the class's own loss, under autocast."""

from __future__ import annotations

import torch
from chosen import train
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4, use_cache=False
)
model = GPT2LMHeadModel(config)
model.train()
with torch.autocast("cpu", torch.bfloat16):
    train(model, torch.randint(0, 256, (5, 4, 64)))
