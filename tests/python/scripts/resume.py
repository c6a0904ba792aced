"""Training that is saved to a file and resumed by new objects, which load the file."""

import tempfile
from pathlib import Path

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(9)
losses = []


def train(model: TinyGpt, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


with tempfile.TemporaryDirectory() as folder:
    file, whole = Path(folder) / "state.pt", Path(folder) / "model.pt"
    model = TinyGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    torch.save(model, whole)
    del model, optimizer
    model = TinyGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    del state
    train(model, optimizer, 3)
    unpickled = torch.load(whole, weights_only=False)
finish(losses, model, unpickled)
