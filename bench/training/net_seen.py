"""Says what lease dispatch costs a training step whose states do not all fit.

    memtide run ... net_seen.py LAYERS WIDTH CONTEXT

Prints JSON: the operations of a step of the GPT that lease dispatch sees, and microseconds for all
of them, with leaf modules outside of it and without. Moving chunks costs many times more and
varies, so it is left out: the cost is what was counted, times what each costs where nothing moves
and no chunk is used, in CPU time of the thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torch  # noqa: E402
import train_gpt  # noqa: E402
from memtide._torch_hooks import mode_stack  # noqa: E402
from memtide._torch_hooks.on_gpu.leaf_modules import LeafModules  # noqa: E402
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

_WARM_UP_STEPS = 4
_CALLS, _ROUNDS = 500, 9
Pass = Callable[..., Any]


class _Counter:
    """Counts calls of a method, which stays as it is."""

    def __init__(self, owner: type, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any) -> Any:
            self.calls += 1
            return original(*args)

        setattr(owner, name, counted)
        self.undo = lambda: setattr(owner, name, original)


def _counts(layers: int, width: int, context: int) -> tuple[int, int]:
    """The operations of a step that lease dispatch sees, and the runs of leaf modules that it does
    not see."""
    gpt = train_gpt.Gpt(layers, width, context)
    optimizer = torch.optim.AdamW(gpt.parameters())
    tokens = torch.zeros(1, context, dtype=torch.long)
    counters = _Counter(LeaseDispatchMode, "__torch_dispatch__"), _Counter(LeafModules, "_run")
    for _ in range(_WARM_UP_STEPS):
        for counter in counters:
            counter.calls = 0
        optimizer.zero_grad()
        functional.cross_entropy(gpt(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    for counter in counters:
        counter.undo()
    return counters[0].calls, counters[1].calls


def _microseconds(run: Pass) -> float:
    """The median of what a call costs."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(_CALLS):
            run()
        rounds.append((time.thread_time() - began) / _CALLS * 1e6)
    return statistics.median(rounds)


def _without_dispatch(run: Pass) -> Pass:
    mode = mode_stack.alone(LeaseDispatchMode)
    assert mode is not None

    def bare() -> None:
        with mode_stack.without(mode):
            run()

    return bare


def _unit_costs() -> tuple[float, float]:
    """The cost that lease dispatch adds to an operation that uses no chunk, and the cost of running
    a leaf module without it. (Its leases cost the same either way.)"""
    value, relu = torch.zeros(4), nn.ReLU()

    def add() -> None:
        value.add(value)

    def plain() -> None:
        torch.relu(value)

    bare = _microseconds(_without_dispatch(lambda: None))
    operation_us = _microseconds(add) - (_microseconds(_without_dispatch(add)) - bare)
    leaf_us = _microseconds(lambda: relu(value)) - (_microseconds(_without_dispatch(plain)) - bare)
    return operation_us, leaf_us


def main() -> None:
    layers, width, context = map(int, sys.argv[1:4])
    seen, leaves = _counts(layers, width, context)
    call = LeafModules._call
    LeafModules._call = _call_seen  # type: ignore[method-assign]
    all_seen, _ = _counts(layers, width, context)
    LeafModules._call = call  # type: ignore[method-assign]
    operation_us, leaf_us = _unit_costs()
    print(
        json.dumps(
            {
                "seen_operations": seen,
                "seen_operations_without_leaves": all_seen,
                "us": seen * operation_us + 2 * leaves * leaf_us,  # Backward has hooks, too.
                "us_without_leaves": all_seen * operation_us,
            }
        )
    )


def _call_seen(_leaves: LeafModules, module: nn.Module, value: torch.Tensor, original: Pass) -> Any:
    return original(module, value)


if __name__ == "__main__":
    main()
