"""Trains a model plain, and with activations that move or are recomputed by choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from fake_client import FakeClient
from memtide._activations.activations import Activations
from memtide._activations.script_choices import choices_of
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from torch import nn

_hooks = torch._C._autograd
# Two steps find out what can be recomputed.
STEPS = 5

Step = Callable[[nn.Module], torch.Tensor | list[torch.Tensor]]


@contextlib.contextmanager
def managed(
    model: nn.Module,
    activations: str | Mapping[str, str] = "plan",
    allowed_bytes: int | None = None,
) -> Iterator[Activations]:
    """As in `memtide.offload`, over a fake client; `allowed_bytes` None: without a budget."""
    runtime = runtimes.start(
        FakeClient(lease_budget=512),
        Observer(),
        adopt_everything=False,
        allowance=None if allowed_bytes is None else lambda: allowed_bytes,
        chosen=choices_of(model, activations),
    )
    try:
        yield runtime.activations
    finally:
        runtimes.stop()
    assert _hooks._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    kinds = {type(module) for module in model.modules()}
    assert not any({"__call__", "_call_impl"} & vars(kind).keys() for kind in kinds)


def chunks() -> int:
    """Activation chunks that are allocated after an iteration that has not used any."""
    runtime = runtimes.current()
    assert runtime is not None
    for _ in range(2):  # Chunks that an iteration has used stay for the next one.
        runtime.memory.pressure.end_activations()
    return sum(kind is Kind.ACTIVATION for kind in runtime.client.kinds.values())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN included."""
    bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(*bits)


def train(build: Callable[[], nn.Module], step: Step, how: str | None = None) -> Trained:
    """Some steps of SGD, each with `step`, which calls backward. `how`: "move", or "recompute" with
    a budget of nothing, so that what is left to save moves; None: plain."""
    torch.manual_seed(0)
    model = build()
    if how is None:
        return Trained(_results(model, step), {})
    allowed_bytes = 0 if how == "recompute" else None
    with managed(model, how, allowed_bytes) as activations:
        results = _results(model, step)
        assert activations.kept_bytes == 0
        assert chunks() == 0
        return Trained(results, activations.as_json())


class Trained:
    """The results of a training."""

    def __init__(self, results: list[torch.Tensor], done: dict[str, object]) -> None:
        self.results = results
        self.moved_bytes, self.recomputed = done.get("moved_bytes"), done.get("recomputed_blocks")
        self.reasons = done.get("blocks_left_alone")


def check(how: str, build: Callable[[], nn.Module], step: Step, alone: str = "") -> None:
    """Asserts the same bits as plain torch's, and that something was moved, or that all blocks were
    recomputed; `alone`: that none was, for this reason."""
    ours, plain = train(build, step, how), train(build, step)
    assert len(ours.results) == len(plain.results)
    assert all(map(same_bits, ours.results, plain.results))
    assert ours.moved_bytes
    if how == "recompute" and alone:
        assert (ours.recomputed, list(ours.reasons or {})) == (0, [alone])
    elif how == "recompute":
        assert ours.recomputed and not ours.reasons, ours.reasons


def _results(model: nn.Module, step: Step) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    results = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        found = step(model)
        results += [t.detach().clone() for t in (found if isinstance(found, list) else [found])]
        results += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        del found
    states = [*model.parameters(), *model.buffers()]
    return [*results, *(t.detach().clone() for t in states), torch.get_rng_state()]
