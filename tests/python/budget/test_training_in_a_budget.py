"""The host pool shrinks for a script whose own memory grows under `--host-memory`."""

from __future__ import annotations

import json
from pathlib import Path

from harness import Cli

_MIB = 2**20
_BUDGET_MIB, _POOL_MIB, _GROWS_MIB = 600, 104, 160
_STEPS = 16

# Trains states of 105 MB with argv[1] MiB of its own memory more at the end than at the beginning.
_SCRIPT = f"""
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(640, 640), nn.Tanh()) for _ in range(16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(16, 640), torch.randn(16, 640)
held = []
for step in range({_STEPS}):
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    held.append(torch.ones((int(sys.argv[1]) << 18) // {_STEPS}))
    print(loss.item(), flush=True)
"""


def test_the_pool_gives_its_memory_to_the_script(cli: Cli, tmp_path: Path) -> None:
    script, stats = tmp_path / "grows.py", tmp_path / "stats"
    script.write_text(_SCRIPT, encoding="utf-8")
    flags = ("--device=none", f"--host-memory={_BUDGET_MIB}MiB", f"--stats={stats}")
    run = ("run", *flags, f"--ssd-dir={tmp_path / 'ssd'}", script, _GROWS_MIB)
    done = cli.memtide(*run).check()
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    budget = statistics["budget"]
    assert budget["host_most_own_bytes"] > (_BUDGET_MIB - _POOL_MIB) * _MIB, "it needs the pool's"
    assert budget["host_most_used_bytes"] <= _BUDGET_MIB * _MIB
    assert statistics["ballooned_bytes"] > 0
    assert "The host pool gave" in done.err
    assert done.out == cli.python(script, 0).check().out
