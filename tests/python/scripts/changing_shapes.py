"""Parameters whose shapes change between steps, and what its optimizer keeps for them with them."""

import torch
from common import finish

torch.manual_seed(22)


def widened(old: torch.Tensor, rows: int, fill: float) -> torch.Tensor:
    """The first `rows` rows of `old`, with new ones below where it has fewer."""
    more = torch.full((max(0, rows - len(old)), *old.shape[1:]), fill)
    return torch.cat([old.detach()[:rows], more])


embed, body = torch.nn.Embedding(8000, 256), torch.nn.Linear(256, 512)
head = torch.nn.Linear(512, 256)
model = torch.nn.ModuleList([embed, body, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
results = []
for step in range(9):
    optimizer.zero_grad()
    tokens = torch.randint(embed.weight.shape[0], (64,))
    loss = (head(body(embed(tokens))) - embed(tokens.roll(1))).square().mean()
    loss.backward()
    optimizer.step()
    results.append(loss.item())
    del loss  # Its graph knows the shapes as they are.
    if step in (2, 6):  # More tokens, later fewer: the same parameter, with longer states.
        rows = 12000 if step == 2 else 5000
        embed.weight.data = widened(embed.weight, rows, 0.02)
        embed.weight.grad = None
        embed.num_embeddings = rows
        for name in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[embed.weight]
            state[name] = widened(state[name], rows, 0.0)
    if step == 4:  # A wider layer, as another parameter that begins anew.
        for layer, name, size in ((body, "weight", 700), (body, "bias", 700)):
            old = getattr(layer, name)
            new = torch.nn.Parameter(widened(old, size, 0.01))
            setattr(layer, name, new)
            optimizer.state.pop(old)
            group = optimizer.param_groups[0]
            group["params"] = [new if each is old else each for each in group["params"]]
        old = head.weight
        head.weight = torch.nn.Parameter(widened(old.T, 700, 0.01).T.contiguous())
        optimizer.state.pop(old)
        group["params"] = [head.weight if each is old else each for each in group["params"]]
# Shapes that do not fit together any more are an error of torch's.
embed.weight.data = widened(embed.weight, 9000, 0.02)
embed.weight.grad = None
embed(torch.arange(9000)).square().mean().backward()
try:
    optimizer.step()
except RuntimeError as error:
    results.append(len(str(error).split("must match")))
finish(results, model)
