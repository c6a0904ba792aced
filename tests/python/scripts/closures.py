"""LBFGS, whose step runs forward and backward itself, and Rprop."""

import torch
from common import finish

torch.manual_seed(14)
losses = []
models = []
inputs, targets = torch.randn(64, 128), torch.randn(64, 4)
for make in (
    lambda parameters: torch.optim.LBFGS(parameters, max_iter=4, history_size=3),
    lambda parameters: torch.optim.Rprop(parameters, lr=1e-3),
):
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 768),
        torch.nn.Tanh(),
        torch.nn.Linear(768, 768),
        torch.nn.Tanh(),
        torch.nn.Linear(768, 4),
    )
    optimizer = make(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()  # noqa: B023  Called within this turn of the loop.
        loss = torch.nn.functional.mse_loss(model(inputs), targets)  # noqa: B023
        loss.backward()
        return loss

    for _ in range(4):
        losses.append(optimizer.step(closure).item())
    models.append(model)
finish(losses, *models)
