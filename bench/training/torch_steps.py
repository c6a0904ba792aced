"""Times AdamW in torch and in the daemon's kernels, by turns, on tensors of the same shapes.

There are 64 M parameters in 16 tensors, 2.5 GiB in all. torch steps in place with its own threads.
The kernels step out of place on as many threads, each of which has a half of every tensor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
import torch
from figures import Pair

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python" / "testing"))

from optimizer_kernels import Kernels  # noqa: E402

THREADS = 2
_TENSORS = 16
_ELEMENTS = 4 << 20
OPTIONS: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
}


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class KernelSteps:
    """Out-of-place steps by the daemon's kernels on the states of a torch optimizer."""

    def __init__(self, path: Path, optimizer: torch.optim.Optimizer) -> None:
        self._kernels = Kernels(str(path))
        self._tensors = []
        for parameter in optimizer.param_groups[0]["params"]:
            state = optimizer.state[parameter]
            old = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
            fresh = [torch.zeros_like(tensor) for tensor in old]
            self._tensors.append((parameter.grad, old, fresh))
        self._threads = ThreadPoolExecutor(THREADS)

    def step(self) -> None:
        # ctypes releases the interpreter's lock during the call.
        list(self._threads.map(self._share, range(THREADS)))

    def _share(self, thread: int) -> None:
        size = _ELEMENTS // THREADS
        part = slice(thread * size, (thread + 1) * size)
        for gradient, old, fresh in self._tensors:
            parameter, *states = (tensor[part] for tensor in old)
            new_parameter, *new_states = (tensor[part] for tensor in fresh)
            self._kernels.run(
                "AdamW",
                10,
                gradient[part],
                parameter,
                states,
                (new_parameter, new_states),
                **OPTIONS,
            )


def make_parameters() -> list[torch.nn.Parameter]:
    """Makes 64 M elements with gradients, and sets torch's number of threads to THREADS."""
    torch.set_num_threads(THREADS)
    parameters = [torch.nn.Parameter(torch.randn(_ELEMENTS)) for _ in range(_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn(_ELEMENTS)
    return parameters


def take_turns(
    theirs: dict[str, torch.optim.Optimizer], ours: KernelSteps, rounds: int
) -> dict[str, list[Pair]]:
    """Measures seconds per step, by the figure's name: each optimizer against the kernels."""
    samples: dict[str, list[Pair]] = {}
    for turn in range(rounds + 1):
        for name, optimizer in theirs.items():
            load = machine.Load(machine.our_processes())
            first = _seconds(ours.step) if turn % 2 else None
            limit = _seconds(optimizer.step)
            product = first if first is not None else _seconds(ours.step)
            pair = Pair(limit, product, load.of_others())
            if turn > 0:  # The first turn warms up.
                samples.setdefault(name, []).append(pair)
    return samples


def measure(library: Path, rounds: int) -> dict[str, list[Pair]]:
    """Measures seconds per step: torch's foreach and fused AdamW, each against the kernels."""
    parameters = make_parameters()
    optimizer = torch.optim.AdamW(parameters, foreach=True, **OPTIONS)
    optimizer.step()
    fused = torch.optim.AdamW(parameters, fused=True, **OPTIONS)
    fused.load_state_dict(optimizer.state_dict())
    for group in fused.param_groups:
        group["foreach"], group["fused"] = False, True
    # Both optimizers share their states: load_state_dict copies none of the same type and device.
    theirs = {"optimizer.torch_foreach": optimizer, "optimizer.torch_fused": fused}
    return take_turns(theirs, KernelSteps(library, optimizer), rounds)
