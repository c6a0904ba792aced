"""Trains a T5 in the ranks that `accelerate launch` has started. Rank 0 writes the result, and runs
the Python program AT_END of the environment while all live."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from accelerate import Accelerator
from report import finish
from small_t5 import small_t5
from torch.utils.data import DataLoader

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = small_t5()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = DataLoader(torch.randint(1, 512, (48, 24)), batch_size=4)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
torch.manual_seed(accelerator.process_index)
losses: list[float] = []
for words in batches:
    loss = model(input_ids=words, labels=words).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    finish(losses, accelerator.unwrap_model(model))
    if "AT_END" in os.environ:
        subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)
accelerator.wait_for_everyone()
accelerator.end_training()
