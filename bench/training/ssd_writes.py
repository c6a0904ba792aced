"""Counts what an optimizer's step writes to SSD, in bytes a parameter, by the formats of states.

    python bench/training/ssd_writes.py           prints a table of all formats; a minute
    python bench/training/ssd_writes.py WAY       prints the bytes of one

The daemon's counter says what was written while a stack of layers, whose parameters and states are
many times as large as the host pool, makes some steps. So it includes gradients that leave for SSD
before their step, and what stays in the pool is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import memtide
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from training.losses import WAYS  # noqa: E402

_MIB = 2**20
_WIDTH, _LAYERS, _BATCH = 1024, 24, 1
_WARM_UP_STEPS, _STEPS = 4, 4
_POOL = "40MiB"


def written_bytes(way: str) -> float:
    """The bytes that one step of this format writes for a parameter. Once in a process."""
    dtype, make_optimizer, _ = WAYS[way]
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*layers).to(dtype)
    optimizer = make_optimizer(model.parameters())
    inputs = torch.randn(_BATCH, _WIDTH).to(dtype)
    with memtide.offload(model, optimizer, host_pool=_POOL, chunk_size="2MiB") as offloaded:
        counts = []
        for step in range(_WARM_UP_STEPS + _STEPS):
            if step in (_WARM_UP_STEPS, _WARM_UP_STEPS + _STEPS - 1):
                counts.append(offloaded.stats()["moved_bytes"]["ssd_written_bytes"])
            optimizer.zero_grad()
            model(inputs).float().square().mean().backward()
            optimizer.step()
    parameters = _LAYERS * _WIDTH * _WIDTH
    return (counts[-1] - counts[0]) / (_STEPS - 1) / parameters


def main() -> None:
    if len(sys.argv) > 1:
        print(written_bytes(sys.argv[1]))
        return
    for way in WAYS:
        # A process has one session, whose daemon counts for it alone.
        run = subprocess.run(
            [sys.executable, __file__, way], capture_output=True, text=True, check=True
        )
        print(f"{way:32} {float(run.stdout):5.1f} bytes a parameter and step", flush=True)


if __name__ == "__main__":
    main()
