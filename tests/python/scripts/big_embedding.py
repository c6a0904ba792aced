"""An embedding much larger than a chunk, with dense gradients, and a sparse one beside it."""

import torch
from common import finish

torch.manual_seed(13)


class Scorer(torch.nn.Module):
    """Two embeddings and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Embedding(20_000, 100)
        self.sparse = torch.nn.Embedding(8_000, 100, sparse=True)
        self.line = torch.nn.Linear(200, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.dense(rows), self.sparse(rows % 8_000)], dim=-1)
        return self.line(both).squeeze(-1)


model = Scorer()
dense = torch.optim.Adagrad([*model.dense.parameters(), *model.line.parameters()], lr=0.1)
sparse = torch.optim.SparseAdam(list(model.sparse.parameters()), lr=0.1)
losses = []
for _ in range(5):
    rows = torch.randint(20_000, (256,))
    dense.zero_grad()
    sparse.zero_grad()
    loss = torch.nn.functional.mse_loss(model(rows), rows.float() / 20_000)
    loss.backward()
    dense.step()
    sparse.step()
    losses.append(loss.item())
finish(losses, model)
