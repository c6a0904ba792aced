"""A perceptron with momentum SGD."""

import torch
from common import finish

torch.manual_seed(1)
layers = [torch.nn.Linear(512, 512) for _ in range(9)]
model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
losses = []
for _ in range(6):
    inputs, targets = torch.randn(32, 512), torch.randint(10, (32,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
