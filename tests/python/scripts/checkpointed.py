"""Begins a checkpoint during training; asserts that the file has the content of that moment."""

import os
from pathlib import Path

import memtide
import torch
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(0)
model = TinyGpt(width=384)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
file = Path(os.environ["RESULT"])
for step in range(8):
    loss = loss_of(model, batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        checkpoint = memtide.checkpoint(file, model, optimizer)
        print("asked", checkpoint.done)
checkpoint.wait()
content = file.read_bytes()
at = 8 + int.from_bytes(content[:8], "little")
for name, tensor in expected.items():  # The file has the same order.
    there = content[at : at + tensor.nbytes]
    assert there == tensor.view(-1).view(torch.uint8).numpy().tobytes(), name
    at += tensor.nbytes
print("as it was")
