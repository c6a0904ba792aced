"""Trains a Wav2Vec2 with CTC on noise with transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from printing_trainer import Samples, train
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

SECONDS, RATE, LETTERS = 4, 16_000, 32


def model() -> Wav2Vec2ForCTC:
    return Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=LETTERS,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=6,
            conv_dim=(128,) * 7,
            num_conv_pos_embeddings=32,
            num_conv_pos_embedding_groups=8,
            mask_time_length=4,
        )
    )


def sample(generator: torch.Generator) -> dict[str, Any]:
    return {
        "input_values": torch.randn(SECONDS * RATE, generator=generator),
        "labels": torch.randint(1, LETTERS, (40,), generator=generator),
    }


train(model, Samples(sample), batch=32)
