"""Trains adapters over a base of 4 bits: bitsandbytes, PEFT and TRL, as QLoRA's users do."""

from __future__ import annotations

import tempfile

import tiny_llama
import torch
from datasets import Dataset
from peft import LoraConfig, prepare_model_for_kbit_training
from printing import SETTINGS_OF_TRL, printing, text
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
random = torch.Generator().manual_seed(0)
texts = Dataset.from_dict({"text": [text(random, 48) for _ in range(48)]})
with tempfile.TemporaryDirectory() as folder:
    tiny_llama.model(width=384, layers=6).save_pretrained(folder)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantization, device_map={"": "cpu"}, dtype=torch.float32
    )
    printing(SFTTrainer)(
        model=prepare_model_for_kbit_training(base, use_gradient_checkpointing=False),
        args=SFTConfig(
            folder, max_steps=8, per_device_train_batch_size=2, max_length=64, **SETTINGS_OF_TRL
        ),
        train_dataset=texts,
        processing_class=tiny_llama.words(),
        peft_config=LoraConfig(r=128, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).train()
