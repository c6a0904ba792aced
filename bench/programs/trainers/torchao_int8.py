"""Trains adapters by PEFT over a base of torchao's tensors of few bits."""

from __future__ import annotations

import printing
import tiny_llama
import torch
from peft import LoraConfig, get_peft_model
from torchao.quantization import Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
base = tiny_llama.model()
quantize_(base, Int8WeightOnlyConfig())
model = get_peft_model(
    base.requires_grad_(requires_grad=False),
    LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM"),
)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
tokens = torch.randint(0, 64, (4, 32))
for _ in range(8):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    printing.loss(loss.detach())
