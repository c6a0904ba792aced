"""Where parameters are, who else has them, and what lies beside them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from memtide._memory import adoption, arena
from memtide._memory.alignment import ALIGNMENT_BYTES
from memtide._optimizer_step import offloaded_step, step_in_parts, torch_kernels
from museum import (
    STEPS,
    WIDTH,
    Case,
    Results,
    adamw,
    batch,
    believing_parts,
    moving_shared_tensors,
    network,
    train,
    values,
)
from torch import nn

_TOKENS = 128


def tied_weights() -> Results:
    """A head that is its embedding, and two layers whose weights lie over the same bytes."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"embedding": nn.Embedding(_TOKENS, WIDTH), "layers": network()})
    head = model["head"] = nn.Linear(WIDTH, _TOKENS)
    head.weight = model["embedding"].weight
    model["layers"][4].weight.data = model["layers"][0].weight.data
    optimizer = adamw(model)

    def loss_of(_step: int) -> torch.Tensor:
        tokens = torch.randint(_TOKENS, (32,))
        scores = head(model["layers"](model["embedding"](tokens)))
        return nn.functional.cross_entropy(scores, tokens.roll(1))

    return [*train(optimizer, loss_of), *values(model, optimizer)]


def a_moment_of_two_parameters() -> Results:
    """A script lets two layers have one second moment."""
    torch.manual_seed(0)
    model = network()
    optimizer = adamw(model)

    def loss_of(_step: int) -> torch.Tensor:
        if optimizer.state:
            first, other = (optimizer.state[model[layer].weight] for layer in (0, 4))
            other["exp_avg_sq"] = first["exp_avg_sq"]
        return model(batch()).square().mean()

    return [*train(optimizer, loss_of), *values(model, optimizer)]


def one_of_them_stepped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offloaded_step, "collisions", lambda _: iter(()))


def a_table_under_a_parameter() -> Results:
    """A script puts a parameter over a tensor of its own, and goes on changing that one."""
    model = network()
    optimizer = adamw(model)
    table = torch.randn(WIDTH, WIDTH) / 8
    losses = []
    for step in range(STEPS):
        if step == 2:
            model[2].weight.data = table
        if step > 2:
            table.mul_(0.9)
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, table.clone(), *values(model, optimizer)]


def uncounted_users(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adoption, "storage_users", lambda _: 0)


def weights_changed_behind_the_optimizer() -> Results:
    """Weights are clamped between backward and step, replaced, and followed by an average."""
    model = network()
    optimizer = adamw(model)
    average = copy.deepcopy(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        with torch.no_grad():
            model[step % 4 * 2].weight.clamp_(-0.1, 0.1)
            if step == 5:
                model[0].weight.copy_(average[0].weight)
                model[2].weight.data = average[2].weight.data.clone()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.2)
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer), *values(average)]


def odd_sizes() -> Results:
    """No size is a multiple of 64 bytes, or of a chunk: some tensors have 1, 7 or 13 elements."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(576, 13), nn.Tanh(), nn.Linear(13, 67), nn.Tanh())
    model.extend([nn.Linear(67, 7), nn.Tanh(), nn.Linear(7, 577), nn.Tanh()])
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    model.register_parameter("gates", nn.Parameter(torch.ones(577, dtype=torch.bfloat16)))
    optimizer = adamw(model)
    return [
        *train(
            optimizer,
            lambda _: (model(torch.randn(13, 576)) * model.scale * model.gates - 1).square().mean(),
        ),
        *values(model, optimizer),
    ]


def tails_cut_off(patch: pytest.MonkeyPatch) -> None:
    def rounded_down(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
        return size_bytes // alignment_bytes * alignment_bytes

    patch.setattr(arena, "aligned", rounded_down)


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank, as in LoRA: `b` begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a = nn.Linear(WIDTH, 8, bias=False)
        self.b = nn.Linear(8, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result = self.base(value)
        result += self.b(self.a(value)) * 2
        return result.tanh()


def adapters_beside_a_frozen_base() -> Results:
    torch.manual_seed(0)
    model = nn.Sequential(*(Adapted() for _ in range(6)))
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=0.01)
    return [
        *train(optimizer, lambda _: (model(batch()) - 1).square().mean()),
        *values(model, optimizer),
    ]


def zeros_left_alone(patch: pytest.MonkeyPatch) -> None:
    """A parameter that begins with zeros is not stepped."""
    step_in_tiles = torch_kernels.step_in_tiles

    def unless_zero(part: Any, gradient: Any, old: Any, new: Any, scratch: Any) -> None:
        if old[0].any():
            step_in_tiles(part, gradient, old, new, scratch)
            return
        for tensor, before in zip(new, old, strict=True):
            tensor.copy_(before)

    patch.setattr(torch_kernels, "step_in_tiles", unless_zero)


def layers_frozen_and_thawed() -> Results:
    """Weight decay leaves frozen weights alone; what is thawed is trained, from where it was. With
    6,400 bytes each, weights share chunks."""
    model = network(40, depth=6)
    model[0].weight.requires_grad_(False)
    model[4].requires_grad_(False)
    optimizer = adamw(model)
    losses = []
    for step in range(STEPS):
        if step == 3:
            model[4].requires_grad_(True)
        if step == 5:
            model[2].requires_grad_(False)
        optimizer.zero_grad()
        loss = model(batch(40)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def nothing_copied_beside_the_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step_in_parts, "copies_of", lambda *_: {})


def masters_of_the_script() -> Results:
    """bf16 weights with masters by hand. The fp32 head's master is the head: float() copies
    nothing."""
    model = network().to(torch.bfloat16)
    head = nn.Linear(WIDTH, WIDTH)
    parameters = [*model.parameters(), *head.parameters()]
    masters = [parameter.detach().float() for parameter in parameters]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = head(model(batch().bfloat16()).float()).square().mean()
        loss.backward()
        for parameter, master in zip(parameters, masters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=False):
                parameter.copy_(master)
        losses.append(loss.detach())
    return [*losses, *masters, *values(model, optimizer), *values(head)]


CASES = [
    Case(tied_weights, one_of_them_stepped),
    Case(a_moment_of_two_parameters, one_of_them_stepped),
    Case(a_table_under_a_parameter, uncounted_users),
    Case(weights_changed_behind_the_optimizer, believing_parts),
    Case(odd_sizes, tails_cut_off),
    Case(adapters_beside_a_frozen_base, zeros_left_alone),
    Case(layers_frozen_and_thawed, nothing_copied_beside_the_step),
    Case(masters_of_the_script, moving_shared_tensors),
]
