"""The script's own optimizer class, a moving average of the weights, and copies of the model."""

import copy
import math
from collections.abc import Callable, Iterable

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an interpolated momentum."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros(parameter.shape)
                momentum = state["momentum"]
                update = momentum.mul(0.9).add(parameter.grad, alpha=0.1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                momentum.mul_(0.99).add_(parameter.grad, alpha=0.01)


torch.manual_seed(10)
model = TinyGpt()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = Lion(model.parameters(), lr=1e-4)
losses = []
for step in range(5):
    model.zero_grad()
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 1 - math.exp(-step / 5))
    losses.append(loss.item())
with torch.no_grad():
    losses.append(loss_of(average, batch()).item())
finish(losses, model, average)
