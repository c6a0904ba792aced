"""Trains a RegNet of torchvision with Lightning's Trainer."""

from __future__ import annotations

import lightning
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.models import regnet_y_400mf
from torchvision.transforms import ToTensor

BATCH, STEPS = 28, 8


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = regnet_y_400mf(num_classes=10)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print("loss", loss.item(), flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
images = FakeData(BATCH * STEPS, (3, 224, 224), 10, ToTensor())
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=STEPS,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), DataLoader(images, batch_size=BATCH, shuffle=True))
