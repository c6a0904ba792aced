"""A transformer on a device, with AdamW and clipped gradients:
`on_device.py DEVICE STEPS [MIB [SEQUENCES [LAYERS]]]`. In each step it also fills MIB of device
memory. It says the most of the device's memory that all
processes had when it looked, how often the allocator's cache was emptied after the first step, and
how often all work of the process was waited for."""

import sys
from typing import Any

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

device = sys.argv[1]
steps, scratch_mib, sequences, layers = map(
    int, (*sys.argv[2:], *("0", "4", "3")[len(sys.argv) - 3 :])
)
emptied = waited = 0
module = torch.get_device_module(device)
_empty_cache = getattr(module, "empty_cache", None)  # torch.cpu has none.


def count_and_empty(*args: Any) -> Any:
    """The device's empty_cache, counted."""
    global emptied
    emptied += 1
    return _empty_cache(*args)


if _empty_cache is not None:
    module.empty_cache = count_and_empty
torch.manual_seed(2)
model = TinyGpt(layers=layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
losses = []


def waits() -> int:
    """How often this process has waited for all work on the fake CUDA."""
    return int(module.cuda_calls("cuCtxSynchronize")) if device == "fakegpu" else 0


def used_bytes() -> int:
    """The bytes of the device's memory that all processes have now."""
    if _empty_cache is None:
        return 0
    free_bytes, total_bytes = module.mem_get_info()
    return int(total_bytes - free_bytes)


most_bytes = 0
for step in range(steps):
    loss = loss_of(model, batch(sequences).to(device))
    most_bytes = max(most_bytes, used_bytes())
    optimizer.zero_grad()
    loss.backward()
    most_bytes = max(most_bytes, used_bytes())
    torch.ones(scratch_mib << 20, dtype=torch.uint8, device=device)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    most_bytes = max(most_bytes, used_bytes())
    losses += [loss.item(), norm.item()]
    if step == 0:
        emptied, waited = 0, waits()
print(f"used at most {most_bytes} bytes")
print(f"emptied {emptied} times, waited {waits() - waited} times")
finish(losses, model)
