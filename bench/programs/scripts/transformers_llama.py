"""Trains a Llama with transformers' Trainer."""

from __future__ import annotations

from printing_trainer import train, words
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 1024


def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=8,
            num_attention_heads=4,
        )
    )


train(model, words(256, VOCABULARY), batch=44)
