"""Trains LoRA adapters of peft on a small Llama."""

from __future__ import annotations

import torch
from chosen import train
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=344,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)
adapters = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.1)
model = get_peft_model(LlamaForCausalLM(config), adapters)
model.train()
train(model, torch.randint(0, 256, (5, 4, 64)))
