"""A perceptron with momentum SGD."""

import torch
from common import finish

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1536),
    torch.nn.ReLU(),
    torch.nn.Linear(1536, 1536),
    torch.nn.ReLU(),
    torch.nn.Linear(1536, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
losses = []
for _ in range(6):
    inputs, targets = torch.randn(32, 256), torch.randint(10, (32,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
