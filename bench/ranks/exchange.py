"""Compares what ranks send, and what they learn, by plain all-reduce, memtide.exchange and torch's
PowerSGD: `exchange.py [--ranks N] [--steps N]`, run by hand with memtide on Python's path.

A small recommender learns synthetic clicks, and a small GPT a synthetic text. Loss is the mean of
the last 50 steps and all ranks, of three seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_EXACT_STEPS = 20
_LAST_STEPS = 50
_KINDS = (
    ("all-reduce", {}),
    ("threshold", {"share": 0.01, "renew_every": 100}),
    ("threshold", {"share": 0.03, "renew_every": 100}),
    ("low_rank", {"rank": 2}),
    ("low_rank", {"rank": 4}),
    ("PowerSGD", {"rank": 2}),
    ("PowerSGD", {"rank": 4}),
)
# Over gloo, torch's PowerSGD needs one bucket: with several, it starts the next all-reduce of a
# bucket when the one before ends, in an order that differs between ranks.
_BUCKET_MB = {"PowerSGD": 100.0}

Batches = Iterator[torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Recommender(nn.Module):
    """Whether a user clicks on an item, by tables of both and a network over them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 16) for rows in (4000, 2000, 100))
        self.top = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        parts = [table(numbers[:, n]) for n, table in enumerate(self.tables)]
        return self.top(torch.cat(parts, 1)).view(-1)


def clicks(rank: int, seed: int) -> Batches:
    """Numbers of users, items and contexts, and whether there was a click."""
    truth = torch.Generator().manual_seed(seed)
    users, items = (torch.randn(rows, 4, generator=truth) for rows in (4000, 2000))
    contexts = torch.randn(100, generator=truth)
    own = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        # Few are frequent, as in real clicks.
        numbers = [
            (torch.rand(256, generator=own) ** 3 * rows).long() for rows in (4000, 2000, 100)
        ]
        score = (users[numbers[0]] * items[numbers[1]]).sum(1) + contexts[numbers[2]]
        clicked = torch.rand(256, generator=own) < torch.sigmoid(score)
        yield torch.stack([*numbers, clicked.long()], 1)


def click_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(batch[:, :3]), batch[:, 3].float())


class Gpt(nn.Module):
    """Two layers over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, 64), nn.Embedding(32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def text(rank: int, seed: int) -> Batches:
    """Sequences in which a token depends on the two before it."""
    truth = torch.Generator().manual_seed(seed)
    after = torch.randint(0, 64, (64, 64, 4), generator=truth)
    own = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        tokens = torch.randint(0, 64, (16, 33), generator=own)
        which = torch.randint(0, 4, (16, 33), generator=own)
        for n in range(2, 33):
            tokens[:, n] = after[tokens[:, n - 2] % 8, tokens[:, n - 1], which[:, n]]
        yield tokens


def text_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


_MODELS: dict[str, tuple[type[nn.Module], Callable[[int, int], Batches], Loss]] = {
    "recommender": (Recommender, clicks, click_loss),
    "GPT": (Gpt, text, text_loss),
}


def _train(
    rank: int, ranks: int, steps: int, name: str, kind: str, options: dict[str, float], out: str
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.met", rank=rank, world_size=ranks)
    losses, sent, whole = [], 0.0, 0.0
    for seed in range(3):
        torch.manual_seed(seed)
        new, batches, loss_of = _MODELS[name]
        model = DistributedDataParallel(new(), bucket_cap_mb=_BUCKET_MB.get(kind, 0.25))
        bytes_of = _register(model, kind, options, ranks)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        seen = []
        for _, batch in zip(range(steps), batches(rank, seed), strict=False):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        mean = torch.tensor([statistics.fmean(seen[-_LAST_STEPS:])])
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
        first, second = bytes_of(steps)
        sent, whole = sent + first / 3, whole + second / 3
    if not rank:
        Path(out).write_text(json.dumps([losses, sent, whole]), encoding="utf-8")
    dist.destroy_process_group()


def _register(
    model: DistributedDataParallel, kind: str, options: dict[str, float], ranks: int
) -> Callable[[int], tuple[float, float]]:
    """Returns what says after a number of steps what a rank has sent, and all-reduce's bytes."""
    elements = sum(parameter.numel() for parameter in model.parameters())
    ring = 4 * 2 * (ranks - 1) / ranks
    if kind == "all-reduce":
        return lambda steps: (steps * elements * ring,) * 2
    if kind == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(
            model.process_group,
            matrix_approximation_rank=int(options["rank"]),
            start_powerSGD_iter=_EXACT_STEPS,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

        def counted(steps: int) -> tuple[float, float]:
            _, before, after = state.compression_stats()
            exact = steps * elements - before
            return (exact + after) * ring, steps * elements * ring

        return counted
    import memtide.exchange

    exchange = getattr(memtide.exchange, kind)(model, exact_steps=_EXACT_STEPS, **options)
    return lambda _: (exchange.sent.bytes, exchange.sent.whole_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    chosen = parser.parse_args()
    print("| model | exchange | bytes, of all-reduce's | loss |\n|---|---|---|---|")
    for name in _MODELS:
        for kind, options in _KINDS:
            with tempfile.TemporaryDirectory() as folder:
                out = f"{folder}/result"
                torch.multiprocessing.start_processes(
                    _train,
                    (chosen.ranks, chosen.steps, name, kind, options, out),
                    chosen.ranks,
                    start_method="fork",
                )
                losses, sent, whole = json.loads(Path(out).read_text(encoding="utf-8"))
            mean, around = statistics.fmean(losses), (max(losses) - min(losses)) / 2
            listed = "".join(f", {key} {value}" for key, value in options.items())
            print(
                f"| {name} | {kind}{listed} | {sent / whole:.1%} | {mean:.4f} (± {around:.4f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
