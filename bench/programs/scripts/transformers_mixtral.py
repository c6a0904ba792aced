"""Trains a Mixtral, a mixture of experts, with transformers' Trainer."""

from __future__ import annotations

from printing_trainer import train, words
from transformers import MixtralConfig, MixtralForCausalLM

VOCABULARY = 1024


def model() -> MixtralForCausalLM:
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=8,
            output_router_logits=True,
        )
    )


train(model, words(256, VOCABULARY), batch=60)
