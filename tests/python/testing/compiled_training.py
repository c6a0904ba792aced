"""A model whose compiled steps are watched, over a fake client as on a GPU or on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.on_gpu.compiled_leases import active_net
from memtide._torch_hooks.runtime import Runtime
from torch import nn

WIDTH = 32  # A weight of this width and height fills a chunk.
BLOCKS = 4
ALL = 2 * BLOCKS + 2  # The chunks of a Model's parameters.
ROOMY = 256  # A lease budget.


class Block(nn.Module):
    """Two chunks of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


class Model(nn.Module):
    """Blocks of one class, and a chunk at each end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Graphs:
    """A backend of torch.compile that counts what it compiles, and what of it runs."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.compiled, self.forward, self.backward = 0, 0, 0
        self.unleased: list[str] = []  # Graphs that have run without all leases, or under a mode.
        self._runtime = runtime

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        self.compiled += 1
        if self._runtime is not None and not is_covered(self._runtime, inputs):
            self.unleased.append("compilation")
        return aot_autograd(
            fw_compiler=lambda gm, _: self._counting(gm, "forward"),
            bw_compiler=lambda gm, _: self._counting(gm, "backward"),
        )(gm, inputs)

    def _counting(self, gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            setattr(self, phase, getattr(self, phase) + 1)
            if self._runtime is not None and not is_covered(self._runtime, args):
                self.unleased.append(phase)
            own = list(args)
            args.clear()
            return gm(*own)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def is_covered(runtime: Runtime, args: list[Any]) -> bool:
    """Whether all chunks of these tensors are leased, and lease dispatch is off."""
    memory = runtime.memory
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    places = {place for each in tensors for place in memory.addresses.element_places(each)}
    return places <= runtime.client.in_use() and active_net() is None


class Training:
    """A model whose compiled steps can be watched."""

    def __init__(self, compile_: Callable[[nn.Module], Any]) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.function = compile_(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.tokens = torch.randint(WIDTH, (4, 8))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.function(self.tokens).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def losses(self, steps: int = 5) -> list[float]:
        return [self.step() for _ in range(steps)]


def start(budget: int, *, host: bool = False) -> Runtime:
    client = FakeClient(handles_faults=host, lease_budget=budget)
    return runtimes.start(client, Observer(), adopt_everything=True)


def by_blocks(model: Model, backend: Graphs) -> Model:
    """A model whose blocks are compiled, as a script would do it."""
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def plain_losses(compile_: Callable[[nn.Module], Any]) -> list[float]:
    losses = Training(compile_).losses()
    torch._dynamo.reset()
    return losses
