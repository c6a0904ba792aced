"""Trains T5 with accelerate: accumulated and clipped gradients, a schedule, and a state that is
saved and loaded again."""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from report import finish
from small_t5 import small_t5
from torch.utils.data import DataLoader


def train_an_epoch() -> None:
    for words in batches:
        with accelerator.accumulate(model):
            loss = model(input_ids=words, labels=words).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())


torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = small_t5()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
batches = DataLoader(torch.randint(1, 512, (32, 24)), batch_size=4, shuffle=True)
model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
losses: list[float] = []
with tempfile.TemporaryDirectory() as folder:
    train_an_epoch()
    accelerator.save_state(folder)
    train_an_epoch()
    accelerator.load_state(folder)
    train_an_epoch()
finish(losses, accelerator.unwrap_model(model))
