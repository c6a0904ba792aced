"""Fine-tunes on texts with TRL's SFTTrainer, as its example script sft.py does."""

from __future__ import annotations

import tempfile

import tiny_llama
import torch
from datasets import Dataset
from printing import SETTINGS_OF_TRL, printing, text
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
random = torch.Generator().manual_seed(0)
texts = Dataset.from_dict({"text": [text(random, 48) for _ in range(48)]})
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        max_steps=8,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_length=64,
        **SETTINGS_OF_TRL,
    )
    printing(SFTTrainer)(
        model=tiny_llama.model(),
        args=arguments,
        train_dataset=texts,
        processing_class=tiny_llama.words(),
    ).train()
