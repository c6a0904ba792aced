"""Trains with Lightning's Trainer: validation, checkpoints, clipped gradients, a schedule. A second
Trainer continues from the last checkpoint, with accumulated gradients."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from report import finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]
WIDTH = 512


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
        self.losses: list[float] = []

    def _loss(self, batch: Batch) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def training_step(self, batch: Batch) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Batch) -> None:
        self.log("validation", self._loss(batch))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=30)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def trainer(folder: str, checkpoint: ModelCheckpoint, **more: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[checkpoint],
        **more,
    )


lightning.seed_everything(0)
samples = TensorDataset(torch.randn(128, WIDTH), torch.randint(0, 10, (128,)))
training = DataLoader(samples, batch_size=16, shuffle=True)
validation = DataLoader(TensorDataset(*samples[:32]), batch_size=16)
with tempfile.TemporaryDirectory() as folder:
    first, second = Classifier(), Classifier()
    best = ModelCheckpoint(folder, save_last=True, monitor="validation")
    trainer(folder, best, max_epochs=2, gradient_clip_val=1.0).fit(first, training, validation)
    trainer(folder, ModelCheckpoint(folder), max_epochs=3, accumulate_grad_batches=2).fit(
        second, training, validation, ckpt_path=best.last_model_path
    )
finish(first.losses + second.losses, first, second)
