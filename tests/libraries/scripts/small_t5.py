"""The T5 that scripts train."""

from __future__ import annotations

from transformers import T5Config, T5ForConditionalGeneration


def small_t5() -> T5ForConditionalGeneration:
    """A T5 of four layers, with random weights."""
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=512,
            d_model=256,
            d_ff=512,
            num_layers=4,
            num_heads=4,
            d_kv=64,
            decoder_start_token_id=0,
        )
    )
