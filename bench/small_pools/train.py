"""Trains one of eight small models in the way of a public example: `train.py NAME STEPS`.

Plain PyTorch that does not mention memtide. Shapes, optimizers and loops are those of PyTorch's
examples (VAE, MNIST, DCGAN, word_language_model), of minGPT, of ResNets for CIFAR and of small
vision transformers, with widths that give 40 to 80 MiB of states. Data is random, with a fixed
seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], torch.Tensor]


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.Linear(784, 1600)
        self.mean, self.log_variance = nn.Linear(1600, 20), nn.Linear(1600, 20)
        self.writer = nn.Sequential(nn.Linear(20, 1600), nn.ReLU(), nn.Linear(1600, 784))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.reader(x).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        sample = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.writer(sample).sigmoid(), mean, log_variance


def vae() -> Step:
    model = Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        x = torch.rand(128, 784)
        optimizer.zero_grad()
        made, mean, log_variance = model(x)
        distance = 1 + log_variance - mean.pow(2) - log_variance.exp()
        loss = functional.binary_cross_entropy(made, x, reduction="sum") - 0.5 * distance.sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def mnist() -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 320), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(320, 10), nn.LogSoftmax(dim=1)),
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.7)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(torch.rand(64, 1, 28, 28)), torch.randint(10, (64,)))
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    return step


class WordModel(nn.Module):
    """An LSTM, or a transformer, between an embedding and a decoder."""

    def __init__(self, words: int, width: int, *, recurrent: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.core: nn.Module = nn.LSTM(width, width, 2, dropout=0.2)
        if not recurrent:
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.2)
            self.core = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.core(self.embedding(words))
        return self.decoder(hidden[0] if isinstance(hidden, tuple) else hidden)


def word_lstm() -> Step:
    return words_by(WordModel(8000, 320, recurrent=True), torch.optim.SGD, lr=0.5, clip=0.25)


def word_transformer() -> Step:
    return words_by(WordModel(3000, 256, recurrent=False), torch.optim.AdamW, lr=1e-3, clip=0.25)


def words_by(model: nn.Module, kind: type[torch.optim.Optimizer], lr: float, clip: float) -> Step:
    optimizer = kind(model.parameters(), lr=lr)  # type: ignore[call-arg]
    count = model.get_submodule("embedding").num_embeddings

    def step() -> torch.Tensor:
        words = torch.randint(count, (36, 20))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(words[:-1]).flatten(0, 1), words[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return step


def dcgan() -> Step:
    def up(a: int, b: int, stride: int, padding: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b)]

    def down(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]

    f = 48
    generator = nn.Sequential(
        *(*up(100, 8 * f, 1, 0), nn.ReLU(), *up(8 * f, 4 * f, 2, 1), nn.ReLU()),
        *(*up(4 * f, 2 * f, 2, 1), nn.ReLU(), nn.ConvTranspose2d(2 * f, 3, 4, 2, 1), nn.Tanh()),
    )
    judge = nn.Sequential(
        *(nn.Conv2d(3, 2 * f, 4, 2, 1), nn.LeakyReLU(0.2), *down(2 * f, 4 * f)),
        *(*down(4 * f, 8 * f), nn.Conv2d(8 * f, 1, 4), nn.Sigmoid(), nn.Flatten(0)),
    )
    optimizers = [
        torch.optim.Adam(each.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for each in (generator, judge)
    ]

    def step() -> torch.Tensor:
        real, zeros = torch.rand(16, 3, 32, 32), torch.zeros(16)
        judge.zero_grad()
        fake = generator(torch.randn(16, 100, 1, 1))
        of_real = functional.binary_cross_entropy(judge(real), zeros + 1)
        of_real.backward()
        functional.binary_cross_entropy(judge(fake.detach()), zeros).backward()
        optimizers[1].step()
        generator.zero_grad()
        loss = functional.binary_cross_entropy(judge(fake), zeros + 1)
        loss.backward()
        optimizers[0].step()
        return loss

    return step


class Block(nn.Module):
    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.after(x))


def mingpt() -> Step:
    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(100, 240), nn.Embedding(64, 240)
            self.blocks = nn.Sequential(*(Block(240, causal=True) for _ in range(6)))
            self.norm, self.head = nn.LayerNorm(240), nn.Linear(240, 100, bias=False)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.words(words) + self.places(torch.arange(words.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    model = Gpt()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95))

    def step() -> torch.Tensor:
        words = torch.randint(100, (8, 65))
        loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.second, self.last = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.shortcut = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.last(self.second(self.norm(self.first(x)).relu()))
        return (hidden + self.shortcut(x)).relu()


def resnet() -> Step:
    blocks = [Residual(3, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2)]
    blocks += [Residual(256, 384, 2), Residual(384, 384, 1)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(384, 10))
    return images_by(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    )


def vit() -> Step:
    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, 240, 4, 4), nn.Parameter(torch.zeros(64, 240))
            self.blocks = nn.Sequential(*(Block(240, causal=False) for _ in range(6)))
            self.head = nn.Sequential(nn.LayerNorm(240), nn.Linear(240, 10))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2) + self.places
            return self.head(self.blocks(x).mean(1))

    model = Vit()
    return images_by(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05))


def images_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> torch.Tensor:
        logits = model(torch.rand(16, 3, 32, 32))
        loss = functional.cross_entropy(logits, torch.randint(10, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


MODELS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (vae, mnist, word_lstm, word_transformer, dcgan, mingpt, resnet, vit)
}


def losses(name: str, steps: int) -> Iterator[float]:
    torch.manual_seed(0)
    step = MODELS[name]()
    for _ in range(steps):
        yield step().item()


if __name__ == "__main__":
    for number, loss in enumerate(losses(sys.argv[1], int(sys.argv[2]))):
        if number % 10 == 0:
            print(number, loss.hex())
