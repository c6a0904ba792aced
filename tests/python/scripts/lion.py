"""A perceptron with memtide.Lion, two parameter groups and a schedule."""

import torch
from common import finish
from memtide import Lion

torch.manual_seed(2)
layers = [torch.nn.Linear(512, 512) for _ in range(9)]
model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(512, 10))
weights = [each for each in model.parameters() if each.ndim > 1]
biases = [each for each in model.parameters() if each.ndim == 1]
optimizer = Lion(
    [{"params": weights, "weight_decay": 0.1}, {"params": biases}], lr=1e-4, betas=(0.9, 0.98)
)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
losses = []
for _ in range(6):
    inputs, targets = torch.randn(32, 512), torch.randint(10, (32,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
finish(losses, model)
