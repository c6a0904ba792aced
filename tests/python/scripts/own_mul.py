"""Replaces torch.Tensor.mul_ by a function of its own, which counts and puts the first one back."""

import torch
from common import finish

torch.manual_seed(24)
original, calls = torch.Tensor.mul_, []


def mul_(tensor: torch.Tensor, other: float | torch.Tensor) -> torch.Tensor:
    """Counts, and multiplies."""
    calls.append(tensor.numel())
    return original(tensor, other)


torch.Tensor.mul_ = mul_
layers = [torch.nn.Linear(512, 512) for _ in range(6)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
results = []
for step in range(8):
    if step == 5:
        torch.Tensor.mul_ = original
    optimizer.zero_grad()
    loss = model(torch.randn(16, 512)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.mul_(1.0 if step % 2 else 0.5)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0, foreach=False)
    optimizer.step()
    results.append(loss.item())
by_script = [size for size in calls if size in (512, 512 * 512)]
finish([*results, float(len(by_script) >= 5 * len(list(model.parameters())))], model)
