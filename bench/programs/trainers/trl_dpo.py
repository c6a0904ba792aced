"""Trains on preferences with TRL's DPOTrainer and a reference model, as its script dpo.py does."""

from __future__ import annotations

import copy
import tempfile

import tiny_llama
import torch
from datasets import Dataset
from printing import SETTINGS_OF_TRL, printing, text
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

set_seed(0)
random = torch.Generator().manual_seed(0)
columns = {"prompt": 12, "chosen": 24, "rejected": 24}
pairs = Dataset.from_dict(
    {name: [text(random, words) for _ in range(32)] for name, words in columns.items()}
)
with tempfile.TemporaryDirectory() as folder:
    arguments = DPOConfig(
        folder,
        max_steps=8,
        per_device_train_batch_size=2,
        max_length=64,
        **SETTINGS_OF_TRL,
    )
    model = tiny_llama.model()
    printing(DPOTrainer)(
        model=model,
        ref_model=copy.deepcopy(model),
        args=arguments,
        train_dataset=pairs,
        processing_class=tiny_llama.words(),
    ).train()
