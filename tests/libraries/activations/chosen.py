"""Trains a language model with the activations that CHOICE in the environment names. Without it,
memtide is not used."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import memtide
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "scripts"))

from common import digest  # noqa: E402


def train(model: torch.nn.Module, batches: torch.Tensor) -> None:
    """One step for each batch of words. Writes what came out to RESULT."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    managed: contextlib.AbstractContextManager[memtide.Offloaded | None]
    managed = contextlib.nullcontext()
    if "CHOICE" in os.environ:
        choice = os.environ["CHOICE"]
        managed = memtide.offload(model, optimizer, host_memory="2GiB", activations=choice)
    losses, activations = [], None
    with managed as offloaded:
        for words in batches:
            loss = model(input_ids=words, labels=words).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        if offloaded is not None:
            activations = offloaded.stats()["budget"]["activations"]
    result = {"losses": losses, "digest": digest(model.state_dict().values())}
    text = json.dumps({"result": result, "activations": activations})
    Path(os.environ["RESULT"]).write_text(text, encoding="utf-8")
