"""Trains T5 with accelerate, with gradients of two batches accumulated."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration

BATCH, STEPS, LENGTH, VOCABULARY = 30, 16, 192, 1024

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
config = T5Config(
    vocab_size=VOCABULARY,
    d_model=128,
    d_ff=512,
    num_layers=4,
    num_heads=4,
    d_kv=32,
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = DataLoader(torch.randint(1, VOCABULARY, (BATCH * STEPS, LENGTH)), batch_size=BATCH)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for words in batches:
    with accelerator.accumulate(model):
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
