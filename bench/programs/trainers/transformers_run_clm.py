"""Trains a language model as transformers' run_clm.py does: texts are tokenized, joined and cut
into blocks with `datasets`, and evaluated; the checkpoint is loaded, and training continues."""

from __future__ import annotations

import tempfile
from itertools import chain

import tiny_llama
import torch
from datasets import Dataset
from printing import printing, text
from transformers import (
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

BLOCK = 64


def group_texts(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    joined = {name: list(chain(*values)) for name, values in examples.items()}
    length = len(joined["input_ids"]) // BLOCK * BLOCK
    cut = {
        name: [values[at : at + BLOCK] for at in range(0, length, BLOCK)]
        for name, values in joined.items()
    }
    return {**cut, "labels": [list(ids) for ids in cut["input_ids"]]}


set_seed(0)
random = torch.Generator().manual_seed(0)
words = tiny_llama.words()
texts = Dataset.from_dict({"text": [text(random, 40) for _ in range(120)]})
tokens = texts.map(lambda row: words(row["text"]), batched=True, remove_columns=["text"])
blocks = tokens.select_columns(["input_ids", "attention_mask"]).map(group_texts, batched=True)
with tempfile.TemporaryDirectory() as folder:
    for steps in (6, 8):
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            warmup_steps=2,
            weight_decay=0.1,
            eval_strategy="steps",
            eval_steps=4,
            save_steps=6,
            report_to=[],
            disable_tqdm=True,
        )
        saved = f"{folder}/checkpoint-6" if steps > 6 else None
        model = AutoModelForCausalLM.from_pretrained(saved) if saved else tiny_llama.model()
        printing(Trainer)(
            model=model,
            args=arguments,
            train_dataset=blocks.select(range(64)),
            eval_dataset=blocks.select(range(64, 70)),
            data_collator=default_data_collator,
        ).train(resume_from_checkpoint=saved)
