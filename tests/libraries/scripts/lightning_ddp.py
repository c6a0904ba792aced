"""Trains in two processes by Lightning's own launcher: rank 0 makes the model, and then starts the
script again as rank 1. Rank 0 writes the result, and runs the Python program AT_END of the
environment while both live."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import lightning
import torch
from report import finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 512


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_end(self) -> None:
        if self.global_rank == 0 and "AT_END" in os.environ:
            subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)
        self.trainer.strategy.barrier()


lightning.seed_everything(0)
samples = TensorDataset(torch.randn(128, WIDTH), torch.randint(0, 10, (128,)))
model = Classifier()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, DataLoader(samples, batch_size=16))
    if trainer.global_rank == 0:
        finish(model.losses, model)
