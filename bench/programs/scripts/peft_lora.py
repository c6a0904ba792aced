"""Trains LoRA adapters of peft on a frozen Llama with transformers' Trainer."""

from __future__ import annotations

from peft import LoraConfig, PeftModel, get_peft_model
from printing_trainer import train, words
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 1024


def model() -> PeftModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=6,
    )
    adapters = LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.05)
    return get_peft_model(LlamaForCausalLM(config), adapters)


train(model, words(256, VOCABULARY), batch=24)
