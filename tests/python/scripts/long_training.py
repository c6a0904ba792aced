"""Longer training in many situations: `long_training.py CASE STEPS` writes losses and weights."""

import os
import sys

import memtide
import torch
from torch import nn

case, steps = sys.argv[1], int(sys.argv[2])
dtype = torch.bfloat16 if "bf16" in case else torch.float16 if "fp16" in case else torch.float32
torch.manual_seed(21)
layers = [nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 1280), nn.Tanh(), nn.Linear(1280, 640)]
model = nn.Sequential(*layers, nn.LayerNorm(640), nn.Linear(640, 16))
model.to(dtype)
if "frozen" in case:
    model[0].requires_grad_(False)
parameters = list(model.parameters())
groups = [
    {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
    {"params": [p for p in parameters if p.ndim == 1], "lr": 5e-4},
]
if "sgd" in case:
    optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True)
elif "adagrad" in case:
    optimizer = torch.optim.Adagrad(groups, lr=1e-3, lr_decay=1e-3)
elif "amsgrad" in case:
    optimizer = torch.optim.Adam(groups, lr=1e-3, amsgrad=True, maximize=True)
elif "custom" in case:

    class Plain(torch.optim.Optimizer):
        def step(self, closure=None):  # noqa: ARG002
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.add_(p.grad, alpha=-group["lr"])

    optimizer = Plain(groups, {"lr": 1e-2})
elif "master" in case:
    optimizer = memtide.AdamW(groups, lr=1e-3)
elif "stochastic" in case:
    optimizer = memtide.AdamW(groups, lr=1e-3, weights="stochastic")
elif "moments" in case:
    optimizer = memtide.AdamW(groups, lr=1e-3, moments=torch.bfloat16)
else:
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
scaler = torch.amp.GradScaler("cpu", enabled="scaler" in case, init_scale=2.0**126)
sign = -1 if "maximize" in case or "amsgrad" in case else 1
losses = []
for step in range(steps):
    optimizer.zero_grad()
    for _ in range(2 if "accumulation" in case else 1):
        inputs = torch.randn(4, 640, dtype=parameters[0].dtype)
        targets = inputs[:, :16].sin()
        # In fp32: a loss of 16 bits would hide small differences, and show others as 0.4%.
        loss = nn.functional.mse_loss(model(inputs).float(), targets.float())
        scaler.scale(sign * loss).backward()
        losses.append(loss.item())
    if "absent" in case and step % 3:
        model[2].weight.grad = None
    scaler.unscale_(optimizer)
    losses.append(
        nn.utils.get_total_norm([p.grad.float() for p in parameters if p.grad is not None]).item()
    )
    nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
states = optimizer.state_dict()["state"]
torch.save(
    {
        "losses": losses,
        "weights": [p.detach().clone() for p in parameters],
        "states": {
            k: {n: torch.as_tensor(t).clone() for n, t in s.items()} for k, s in states.items()
        },
    },
    os.environ["RESULT"],
)
