"""Trains a Whisper, an encoder and decoder of speech, on noise with transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from printing_trainer import Samples, train
from transformers import WhisperConfig, WhisperForConditionalGeneration

FRAMES, MELS, WORDS = 1000, 80, 512


def model() -> WhisperForConditionalGeneration:
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=WORDS,
            num_mel_bins=MELS,
            max_source_positions=FRAMES // 2,
            max_target_positions=128,
            d_model=128,
            encoder_layers=6,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=512,
            decoder_ffn_dim=512,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            dropout=0.1,
        )
    )


def sample(generator: torch.Generator) -> dict[str, Any]:
    return {
        "input_features": torch.randn(MELS, FRAMES, generator=generator),
        "labels": torch.randint(3, WORDS, (96,), generator=generator),
    }


train(model, Samples(sample), batch=36)
