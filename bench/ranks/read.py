"""All ranks read one frozen weight after the other, at once, from SSD: `read.py OUT OPTIONS`.

Rank 0 writes OUT0: the bytes that the daemon has read from SSD meanwhile. Weights are a chunk each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from memtide._capi.client import Places
from memtide._daemon import inspection
from memtide._torch_hooks import runtime
from torch import nn

_ROWS, _COLUMNS, _WEIGHTS = 512, 1024, 24  # 2 MiB each.


def read_bytes() -> int:
    return inspection.inspect().counters["ssd_read_bytes"]


def read(out: str) -> None:
    torch.manual_seed(0)
    base = nn.ModuleList(nn.Linear(_COLUMNS, _ROWS, bias=False) for _ in range(_WEIGHTS))
    base.requires_grad_(requires_grad=False)
    head = nn.Linear(_COLUMNS, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    for _ in range(2):  # Ranks come to share what the first step has left alone.
        head(torch.ones(_COLUMNS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    managed = runtime.current()
    assert managed is not None
    weights = [layer.weight for layer in base]
    places_of = managed.memory.addresses.places_of
    places = {place for w in weights for place in places_of(w.data_ptr(), w.nbytes)}
    managed.ledger.release_all()
    managed.client.flush()
    dist.barrier()
    if dist.get_rank() == 0:
        managed.client.evict(Places(places))
    dist.barrier()
    before = read_bytes()
    for weight in weights:
        dist.barrier()
        weight.sum()
    dist.barrier()
    if dist.get_rank() == 0:
        Path(f"{out}0").write_text(json.dumps({"read": read_bytes() - before}), encoding="utf-8")
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    read(sys.argv[1])
    dist.destroy_process_group()
