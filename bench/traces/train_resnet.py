"""Trains a ResNet of 18 layers with SGD and momentum, on generated images of 32 x 32."""

from __future__ import annotations

import torch
from common import read_options, train
from torch import nn
from torch.nn import functional

CLASSES, BATCH = 100, 16


class Block(nn.Module):
    """Two convolutions with a residual connection around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.convolution2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.convolution1(x)))
        return functional.relu(self.norm2(self.convolution2(y)) + self.around(x))


def make_resnet() -> nn.Sequential:
    """ResNet-18 in the variant for images of 32 x 32."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def main() -> None:
    options = read_options(__doc__)
    torch.manual_seed(options.seed)
    model = make_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    patterns = torch.randn(CLASSES, 3, 32, 32)

    def next_loss() -> torch.Tensor:
        classes = torch.randint(CLASSES, (BATCH,))
        images = patterns[classes] + torch.randn(BATCH, 3, 32, 32)
        return functional.cross_entropy(model(images), classes)

    train(model, optimizer, options.steps, next_loss)


if __name__ == "__main__":
    main()
