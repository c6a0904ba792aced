"""Runs gpu-check's script, with the shapes that it has on a card, where a card is played.

The model is made on the device, as it is too large for the host, and nothing reads what is in it.
Under memtide, what its hooks do takes the card's time (base/cuda/fake/card.h). They are wrapped
here, so that the product knows nothing of it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "bench" / "gpu" / "gpu_check"), str(_ROOT / "examples")]

import trainee  # noqa: E402

_spend = ctypes.CDLL(os.environ["MEMTIDE_LIBRARY"]).memtide_fake_spend


def _price_hooks() -> None:
    from memtide._telemetry.daemon_reporter import Reporter
    from memtide._torch_hooks import module_hooks
    from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode

    def at_price(function: Callable[..., Any], work: bytes) -> Callable[..., Any]:
        def priced(*arguments: Any, **named: Any) -> Any:
            _spend(work)
            return function(*arguments, **named)

        return priced

    hooks: tuple[tuple[Any, str, bytes], ...] = (
        (module_hooks, "adopt_gradient", b"gradient"),
        (LeaseDispatchMode, "__torch_dispatch__", b"dispatch"),
        (Reporter, "moment", b"moment"),
    )
    for owner, name, work in hooks:
        setattr(owner, name, at_price(getattr(owner, name), work))


def _on_device(model: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    def made(*shape: int) -> torch.nn.Module:
        with torch.device("fakegpu"):
            return model(*shape)

    return made


if __name__ == "__main__":
    _price_hooks()
    trainee.Gpt = _on_device(trainee.Gpt)  # type: ignore[assignment, misc]
    trainee.main()
