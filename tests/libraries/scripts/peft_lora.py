"""Trains LoRA adapters of peft on a frozen Llama that is loaded from files, with activation
checkpointing. The adapters are saved, and merged at the end."""

from __future__ import annotations

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from report import finish
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder)
    base = LlamaForCausalLM.from_pretrained(folder)
adapters = LoraConfig(r=64, target_modules="all-linear", lora_dropout=0.1)
model = get_peft_model(base, adapters)
model.train()
model.activation_checkpointing_enable()
model.enable_input_require_grads()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
losses = []
for _ in range(8):
    words = torch.randint(0, 512, (4, 32))
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
finish(losses, model.merge_and_unload())
