"""Trains GPT-2 with transformers' Trainer on Python's sources: accumulated gradients, warm-up,
evaluation, checkpoints. A second Trainer continues from the last checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from report import finish
from torch.utils.data import Dataset, Subset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

LENGTH = 64


class Text(Dataset):
    """Pieces of a text whose tokens are bytes."""

    def __init__(self) -> None:
        self._bytes = torch.tensor(list(Path(os.__file__).read_bytes()))

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self._bytes[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": piece, "labels": piece.clone()}


class Losses(TrainerCallback):
    """Stores the losses that the Trainer logs."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.values += [logs[name] for name in ("loss", "eval_loss") if name in logs]


def trainer(folder: str, steps: int, losses: Losses) -> Trainer:
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=256,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        warmup_steps=2,
        weight_decay=0.1,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
    )
    text = Text()
    return Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=text,
        eval_dataset=Subset(text, range(8)),
        callbacks=[losses],
    )


set_seed(0)
losses = Losses()
with tempfile.TemporaryDirectory() as folder:
    first = trainer(folder, 8, losses)
    first.train()
    second = trainer(folder, 10, losses)
    second.train(resume_from_checkpoint=True)
finish(losses.values, first.model, second.model)
