"""Trains by rewards of what the model generates, with TRL's GRPOTrainer."""

from __future__ import annotations

import tempfile
from typing import Any

import tiny_llama
import torch
from datasets import Dataset
from printing import SETTINGS_OF_TRL, printing, text
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer


def even_words(completions: list[str], **_: Any) -> list[float]:
    """The part of the words whose numbers are even."""
    return [sum(word[-1:] in "02468" for word in c.split()) / 8 for c in completions]


set_seed(0)
random = torch.Generator().manual_seed(0)
prompts = Dataset.from_dict({"prompt": [text(random, 8) for _ in range(32)]})
with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        folder,
        max_steps=6,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        beta=0.1,
        **SETTINGS_OF_TRL,
    )
    # The reference model is loaded from where the model is.
    tiny_llama.model().save_pretrained(f"{folder}/model")
    printing(GRPOTrainer)(
        model=f"{folder}/model",
        reward_funcs=even_words,
        args=arguments,
        train_dataset=prompts,
        processing_class=tiny_llama.words(),
    ).train()
