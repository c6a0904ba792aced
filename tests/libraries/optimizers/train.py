"""Trains a small GPT with each of some optimizers, one after the other.

    train.py LIBRARY WIDTH [NAME...]

Names are those of catalogue.py; all of the library without any. It prints each loss, and writes
losses and digests of the weights to the file that the environment names in RESULT, if it does.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from pathlib import Path

import torch
from catalogue import LIBRARIES, UNCOPIED, Maker

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "scripts"))

from common import digest  # noqa: E402
from tiny_gpt import TinyGpt, batch, loss_of  # noqa: E402

_STEPS = 6
_LOADED_AFTER = 3  # Steps, after which the optimizer continues from a copy of its state.


def train(name: str, make: Maker, width: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = TinyGpt(width)
    optimizer = make(model)
    losses = []
    getattr(optimizer, "train", lambda: None)()  # Schedule-free optimizers have 2 sets of weights.
    for step in range(_STEPS):
        tokens = batch(2, 16)

        def closure(tokens: torch.Tensor = tokens) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            return loss

        if "Closure" in name or name.lower() == "lbfgs":
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        losses.append(float(loss.detach()))
        print(f"{name}: loss {losses[-1]!r} at {time.monotonic()!r}", flush=True)
        if step + 1 == _LOADED_AFTER and library not in UNCOPIED:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    getattr(optimizer, "eval", lambda: None)()
    with torch.no_grad():
        losses.append(loss_of(model, tokens).item())
    print(f"{name}: loss {losses[-1]!r}\n{name}: optimizer {stepping(optimizer)}", flush=True)
    return {"losses": [loss.hex() for loss in losses], "digest": digest(model.parameters())}


def stepping(optimizer: torch.optim.Optimizer) -> str:
    """The class that steps, without those that wrap it."""
    for name in ("optimizer", "base", "_base_optimizer"):
        if isinstance(inner := getattr(optimizer, name, None), torch.optim.Optimizer):
            return stepping(inner)
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


library, width, *names = sys.argv[1:]
makers = LIBRARIES[library]()
results = {name: train(name, makers[name], int(width)) for name in names or makers}
if "RESULT" in os.environ:
    Path(os.environ["RESULT"]).write_text(json.dumps(results), encoding="utf-8")
