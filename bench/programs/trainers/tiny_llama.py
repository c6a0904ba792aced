"""A causal language model of transformers at random init."""

from __future__ import annotations

from printing import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 512


def model(width: int = 192, layers: int = 4) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            intermediate_size=width * 8 // 3,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            bos_token_id=2,
            eos_token_id=2,
            pad_token_id=1,
        )
    )


def words() -> PreTrainedTokenizerFast:
    return tokenizer(WORDS)
