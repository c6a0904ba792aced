"""A pipeline of four stages with two versions of the weights: `pipelined.py MICRO_BATCHES BATCHES
OPTIMIZER`. Without a launcher, one process applies the same delayed gradients to the same model.

With `--recomputed`, stages compute their forwards again in backward, and with `--recompute` the
schedule has them do so. With `--share`, only the largest elements travel between stages, and each
rank prints its bytes. `--spoil 1:2:output` makes the output of stage 1 NaN in batch 2, and
`gradient` that output's gradient; `error` raises there. With `--skip`, a step is skipped in all
stages if any gradient is not finite. Each stage's losses and weights go to RESULT and its number.
"""

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.utils.checkpoint import checkpoint

_STAGES, _WIDTH = 4, 24


class Recomputed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return y


class LargestOnly(torch.autograd.Function):
    """Elements that arrive in the next stage are zeros but for the largest, as are gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, options: argparse.Namespace) -> torch.Tensor:
        chosen = x.reshape(-1).abs().topk(round(options.share * x.numel()), sorted=False).indices
        ctx.chosen, ctx.share = chosen, options.gradient_share
        y = torch.zeros_like(x)
        y.view(-1)[chosen] = x.reshape(-1)[chosen]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        chosen = ctx.chosen
        if ctx.share is not None:
            size = gradient.reshape(-1)[chosen].abs()
            chosen = chosen[size.topk(round(ctx.share * gradient.numel()), sorted=False).indices]
        back = torch.zeros_like(gradient)
        back.view(-1)[chosen] = gradient.reshape(-1)[chosen]
        return back, None


class Link(nn.Module):
    """Between two stages that are in one process."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = LargestOnly.apply(x, self.options)
        return y


class Spoiled(nn.Module):
    """A stage whose result is NaN in one batch, or the gradient of that."""

    def __init__(self, module: nn.Module, batch: int, what: str, micro_batches: int) -> None:
        super().__init__()
        self.module, self.what = module, what
        # Torch computes one micro-batch more in each rank, from which it infers shapes.
        self.calls = -1 if "RANK" in os.environ else 0
        self.spoiled = range(batch * micro_batches, (batch + 1) * micro_batches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.module(x)
        if self.calls in self.spoiled:
            if self.what == "error":
                raise ArithmeticError("the stage has no result")
            if self.what == "output":
                y = y * float("nan")
            else:
                y.register_hook(lambda gradient: gradient * float("inf"))
        self.calls += 1
        return y


def is_finite(modules: Iterable[nn.Module]) -> bool:
    gradients = (p.grad for module in modules for p in module.parameters())
    return all(bool(g.isfinite().all()) for g in gradients if g is not None)


def stages(options: argparse.Namespace) -> list[nn.Module]:
    torch.manual_seed(0)
    kind = Recomputed if options.recomputed else nn.Sequential

    def block() -> list[nn.Module]:
        return [nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU()]

    made: list[nn.Module] = [
        nn.Sequential(nn.Embedding(32, _WIDTH), *block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        kind(*block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        kind(*block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        nn.Sequential(nn.Linear(_WIDTH, 32)),
    ]
    if "spoil" in options and options.spoil is not None:
        number, batch, what = options.spoil.split(":")
        stage = int(number)
        made[stage] = Spoiled(made[stage], int(batch), what, options.micro_batches)
    return made


def batches(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(options.batches):
        tokens = torch.randint(0, 32, (2 * options.micro_batches, 6), generator=generator)
        yield tokens, (tokens * 5 + 3) % 32


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def optimizer_of(name: str, module: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def pipelined(options: argparse.Namespace) -> None:
    import memtide.pipeline
    from torch.distributed.pipelining import PipelineStage

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = os.environ.get("MEETING")  # Where no launcher has said it.
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    # Several pipelines beside each other: rank r has stage r % 4.
    number = rank % _STAGES
    groups = [
        dist.new_group(list(range(first, first + _STAGES))) for first in range(0, ranks, _STAGES)
    ]
    widths = [dist.new_group(list(range(n, ranks, _STAGES))) for n in range(_STAGES)]
    module = stages(options)[number]
    stage = PipelineStage(
        module, number, _STAGES, torch.device("cpu"), group=groups[rank // _STAGES]
    )
    send = None
    if options.share is not None:
        send = memtide.pipeline.Largest(options.share, options.gradient_share)
    optimizer = optimizer_of(options.optimizer, module)

    def skip(*_: Any) -> None:
        wrong = torch.tensor(0.0 if is_finite([module]) else 1.0)
        dist.all_reduce(wrong)
        if wrong:
            optimizer.zero_grad()

    if options.skip:
        optimizer.register_step_pre_hook(skip)
    schedule = memtide.pipeline.Schedule2BW(
        stage,
        optimizer,
        options.micro_batches,
        loss_of,
        width=widths[number] if ranks > _STAGES else None,
        send=send,
        recompute=options.recompute,
    )
    losses, bytes_seen = [], set()
    for loss in schedule.run(batches(options)):
        losses += [] if loss is None else [loss.item()]
        bytes_seen.add(schedule.weight_bytes)
    one_version = sum(parameter.nbytes for parameter in module.parameters())
    assert max(bytes_seen) == 2 * one_version, (bytes_seen, one_version)
    if schedule.sent is not None:
        # In one write, as all ranks have the same output.
        print(f"{number} {schedule.sent.bytes} {schedule.sent.whole_bytes}\n", end="", flush=True)
    os.environ["RESULT"] += str(rank)
    finish(losses, module)


def by_one_process(options: argparse.Namespace) -> None:
    modules = stages(options)
    parts = list(modules)
    if options.share is not None:
        parts = [part for module in modules for part in (module, Link(options))][:-1]
    model = nn.Sequential(*parts)
    versions = [{n: p.clone() for n, p in model.state_dict().items()}] * 2
    optimizers = [optimizer_of(options.optimizer, module) for module in modules]
    count = options.micro_batches
    losses = []
    for inputs, target in batches(options):
        newest = versions[-1]
        model.load_state_dict(versions[-2])
        pieces = zip(inputs.tensor_split(count), target.tensor_split(count), strict=True)
        seen = []
        for piece, wanted in pieces:
            loss = loss_of(model(piece), wanted)
            loss.backward()
            seen.append(loss.detach())
        losses.append(torch.stack(seen).mean().item())
        model.load_state_dict(newest)
        for parameter in model.parameters():
            parameter.grad.div_(count)
        is_skipped = options.skip and not is_finite(modules)
        for optimizer in optimizers:
            if not is_skipped:
                optimizer.step()
            optimizer.zero_grad()
        versions = [newest, {n: p.clone() for n, p in model.state_dict().items()}]
    result = os.environ["RESULT"]
    for number, module in enumerate(modules):
        os.environ["RESULT"] = f"{result}{number}"
        finish(losses if number == _STAGES - 1 else [], module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("micro_batches", type=int)
    parser.add_argument("batches", type=int)
    parser.add_argument("optimizer")
    parser.add_argument("--recomputed", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--spoil")
    parser.add_argument("--skip", action="store_true")
    parser.add_argument("--share", type=float)
    parser.add_argument("--gradient-share", type=float)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        pipelined(parser.parse_args())
        leave()
    else:
        by_one_process(parser.parse_args())


if __name__ == "__main__":
    main()
