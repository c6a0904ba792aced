"""A transformer that is compiled: `compiled.py DEVICE STEPS BACKEND HOW`. HOW is "whole", or
"blocks" if the script compiles these itself. It prints how many graphs were compiled, how often
they ran, and the warnings."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx

device, steps, backend, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
counts = {"compiled": 0, "forward": 0, "backward": 0}
warned: list[str] = []
warnings.simplefilter("always", UserWarning)
warnings.showwarning = lambda message, *_: warned.append(str(message))


def counting(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
    """A graph of AOTAutograd that counts how often it runs."""

    def run(args: list[Any]) -> Any:
        counts[phase] += 1
        own = list(args)
        args.clear()
        return gm(*own)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compile_graph(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """The backend."""
    counts["compiled"] += 1
    if backend == "inductor":
        compiled: Callable[..., Any] = compile_fx(gm, inputs)
        return compiled
    return aot_autograd(
        fw_compiler=lambda gm, _: counting(gm, "forward"),
        bw_compiler=lambda gm, _: counting(gm, "backward"),
    )(gm, inputs)


torch.manual_seed(2)
model = TinyGpt().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if how == "blocks":
    for block in model.blocks:
        block.compile(backend=compile_graph)
compiled = torch.compile(model, backend=compile_graph) if how == "whole" else model
losses = []
for _ in range(steps):
    loss = loss_of(compiled, batch().to(device))
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    losses += [loss.item(), norm.item()]
finish(losses, model)
print(counts, warned)
