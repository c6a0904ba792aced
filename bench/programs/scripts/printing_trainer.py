"""Trains a model of transformers with its Trainer, which prints the loss of each batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments, set_seed

_STEPS = 8


class Samples(Dataset):
    """As many samples as are asked for, each made from its number."""

    def __init__(self, sample: Callable[[torch.Generator], dict[str, Any]]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._sample(torch.Generator().manual_seed(index))


class PrintingTrainer(Trainer):
    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **named)
        print("loss", loss.item(), flush=True)
        return loss


def words(length: int, vocabulary: int) -> Samples:
    """Random words, as inputs and labels of a language model."""

    def sample(generator: torch.Generator) -> dict[str, Any]:
        row = torch.randint(0, vocabulary, (length,), generator=generator)
        return {"input_ids": row, "labels": row.clone()}

    return Samples(sample)


def train(make_model: Callable[[], PreTrainedModel], samples: Samples, batch: int) -> None:
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=_STEPS,
            per_device_train_batch_size=batch,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        PrintingTrainer(make_model(), arguments, train_dataset=samples).train()
