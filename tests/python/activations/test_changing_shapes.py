"""Many iterations of changing shapes, whose activations move and are recomputed, leak nothing.

MEMTIDE_CHANGING_SHAPES is the number of iterations; `tools/test --long` runs many.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness import Cli

_ITERATIONS = int(os.environ.get("MEMTIDE_CHANGING_SHAPES", "300"))
# Half of the iterations is for what grows at first: heaps, and the plan.
_EARLY = 2
# Bytes by which glibc's heap may still grow as shapes come in other orders. The activations of one
# iteration are some 5 MiB.
_NOISE_BYTES = 12 * 2**20

_SCRIPT = """
import json, os, random, sys
import torch, memtide
from torch import nn
from torch.nn import functional
from memtide._telemetry.process_memory import host_bytes
from memtide._torch_hooks import runtime as runtimes
from memtide._util import heap

iterations, early = int(sys.argv[1]), int(sys.argv[2])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + functional.dropout(self.narrow(functional.gelu(self.wide(x))), 0.1)


torch.manual_seed(0)
random.seed(0)
model = nn.Sequential(*(Block() for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
choices = {"[0-2]": "move", "[3-5]": "recompute"}
readings = []
with memtide.offload(model, optimizer, host_memory="1GiB", activations=choices) as ours:
    runtime = runtimes.current()
    memory, activations = runtime.memory, runtime.activations
    for iteration in range(1, iterations + 1):
        x = torch.randn(random.randrange(2, 9), random.randrange(17, 97), 64)
        loss = model(x).square().mean()
        if iteration % 7:  # In some iterations, nothing is asked for.
            loss.backward()
        del loss, x
        optimizer.step()
        optimizer.zero_grad()
        if iteration in (iterations // early, iterations):
            memory.pressure.end_activations()
            heap.trim()  # Free pages between blocks come and go with the shapes.
            readings.append({
                "chunks": runtime.client.stats().chunks,
                "spans": len(memory.arenas.storages.live()),
                "kept_bytes": activations.kept_bytes,
                "own_bytes": host_bytes(),
            })
    done = ours.stats()["budget"]["activations"]
print(json.dumps([readings, done]))
"""


def test_iterations_of_changing_shapes_leak_nothing(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "changing.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    run = cli.start_python(script, _ITERATIONS, _EARLY)
    out, errors = run.communicate(timeout=600 + _ITERATIONS)
    assert run.returncode == 0, errors
    (early, late), done = json.loads(out)
    assert done["recomputed_blocks"] == 3
    assert done["moved_bytes"] > _ITERATIONS * 2**20
    assert late["kept_bytes"] == early["kept_bytes"] == 0
    assert late["spans"] == early["spans"]
    assert late["chunks"] == early["chunks"]
    assert late["own_bytes"] - early["own_bytes"] < _NOISE_BYTES
