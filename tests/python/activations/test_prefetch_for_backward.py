"""Backward finds activations prefetched, from the second iteration on."""

from __future__ import annotations

from pathlib import Path

from harness import Cli
from memtide._trace import files
from memtide._trace import model as traces

# Each layer is of a class of its own, so that none is recomputed.
_SCRIPT = """
import torch
from torch import nn

class Layer(nn.Linear):
    def forward(self, x):
        return torch.tanh(super().forward(x))


torch.manual_seed(0)
kinds = [type(f"Layer{number}", (Layer,), {}) for number in range(24)]
model = nn.Sequential(*(kind(64, 64) for kind in kinds))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(1 << 13, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_from_the_second_iteration_on_activations_are_prefetched(cli: Cli, tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "run.trace.gz"
    script.write_text(_SCRIPT, encoding="utf-8")
    pools = (
        "--device-memory=48MiB",
        "--host-pool=160MiB",
        "--ssd-pool=256MiB",
        "--chunk-size=2MiB",
    )
    cli.memtide("run", "--device=emulated", *pools, "--trace", path, script).check()
    trace = traces.parse(files.load(path))
    first = trace.iteration_ends[1]
    prefetched = {
        move.chunk
        for move in trace.transfers
        if move.reason == "prefetch" and move.target == "device" and move.moment >= first
    }
    activations = {chunk.number for chunk in trace.chunks.values() if chunk.kind == "activation"}
    assert activations & prefetched
    # They are the same chunks in each iteration, and none of them reaches SSD.
    to_ssd = {move.chunk for move in trace.transfers if move.target == "ssd"}
    assert not activations & to_ssd
