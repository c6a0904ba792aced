"""A pipeline of four stages with two versions of the weights: `pipelined.py MICRO_BATCHES BATCHES
OPTIMIZER [recomputed]`. Without a launcher, one process applies the same delayed
gradients to the same model.

With `recomputed`, stages compute their forwards again in backward. Each stage's losses and weights
go to RESULT and its number.
"""

import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from common import finish
from torch import nn
from torch.utils.checkpoint import checkpoint

_STAGES, _WIDTH = 4, 24


class Recomputed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return y


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    kind = nn.Sequential if len(sys.argv) < 5 else Recomputed

    def block() -> list[nn.Module]:
        return [nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU()]

    return [
        nn.Sequential(nn.Embedding(32, _WIDTH), *block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        kind(*block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        kind(*block(), nn.Linear(4 * _WIDTH, _WIDTH)),
        nn.Sequential(nn.Linear(_WIDTH, 32)),
    ]


def batches(count: int, micro_batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        tokens = torch.randint(0, 32, (2 * micro_batches, 6), generator=generator)
        yield tokens, (tokens * 5 + 3) % 32


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def optimizer_of(name: str, module: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def pipelined(micro_batches: int, count: int, name: str) -> None:
    import memtide.pipeline
    from torch.distributed.pipelining import PipelineStage

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Several pipelines beside each other: rank r has stage r % 4.
    number = rank % _STAGES
    groups = [
        dist.new_group(list(range(first, first + _STAGES))) for first in range(0, ranks, _STAGES)
    ]
    widths = [dist.new_group(list(range(n, ranks, _STAGES))) for n in range(_STAGES)]
    module = stages()[number]
    stage = PipelineStage(
        module, number, _STAGES, torch.device("cpu"), group=groups[rank // _STAGES]
    )
    schedule = memtide.pipeline.Schedule2BW(
        stage,
        optimizer_of(name, module),
        micro_batches,
        loss_of,
        width=widths[number] if ranks > _STAGES else None,
    )
    losses, bytes_seen = [], set()
    for loss in schedule.run(batches(count, micro_batches)):
        losses += [] if loss is None else [loss.item()]
        bytes_seen.add(schedule.weight_bytes)
    one_version = sum(parameter.nbytes for parameter in module.parameters())
    assert max(bytes_seen) == 2 * one_version, (bytes_seen, one_version)
    os.environ["RESULT"] += str(rank)
    finish(losses, module)
    dist.barrier()
    dist.destroy_process_group()


def by_one_process(micro_batches: int, count: int, name: str) -> None:
    modules = stages()
    versions = [{n: p.clone() for n, p in nn.Sequential(*modules).state_dict().items()}] * 2
    model = nn.Sequential(*modules)
    optimizers = [optimizer_of(name, module) for module in modules]
    losses = []
    for inputs, target in batches(count, micro_batches):
        newest = versions[-1]
        model.load_state_dict(versions[-2])
        pieces = zip(
            inputs.tensor_split(micro_batches), target.tensor_split(micro_batches), strict=True
        )
        seen = []
        for piece, wanted in pieces:
            loss = loss_of(model(piece), wanted)
            loss.backward()
            seen.append(loss.detach())
        losses.append(torch.stack(seen).mean().item())
        model.load_state_dict(newest)
        for parameter in model.parameters():
            parameter.grad.div_(micro_batches)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        versions = [newest, {n: p.clone() for n, p in model.state_dict().items()}]
    result = os.environ["RESULT"]
    for number, module in enumerate(modules):
        os.environ["RESULT"] = f"{result}{number}"
        finish(losses if number == _STAGES - 1 else [], module)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = pipelined if "RANK" in os.environ else by_one_process
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
