"""Trains an Audio Spectrogram Transformer on noise with transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from printing_trainer import Samples, train
from transformers import ASTConfig, ASTForAudioClassification

FRAMES, MELS, KINDS = 512, 128, 32


def model() -> ASTForAudioClassification:
    return ASTForAudioClassification(
        ASTConfig(
            hidden_size=192,
            intermediate_size=768,
            num_hidden_layers=12,
            num_attention_heads=3,
            max_length=FRAMES,
            num_mel_bins=MELS,
            num_labels=KINDS,
        )
    )


def sample(generator: torch.Generator) -> dict[str, Any]:
    return {
        "input_values": torch.randn(FRAMES, MELS, generator=generator),
        "labels": torch.randint(0, KINDS, (), generator=generator),
    }


train(model, Samples(sample), batch=20)
