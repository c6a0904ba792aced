"""Trains a small model by DistributedDataParallel, as one of several ranks: `train.py OUT OPTIONS`.

Plain PyTorch but for the optimizer of "masters" and the usage that rank 0 reads. Each rank writes
OUT with its number: its losses and weights, to the bit; rank 0 writes the CPU seconds of steps, of
all ranks and the daemon together, and the daemon's bytes by kind. The options are in JSON:

    steps, warm_up  how many steps, and how many of them are not timed
    masters         bf16 with fp32 masters, of memtide.AdamW
    alone           each rank has a model of its own, so that no content and no gradient is equal
    daemon          its process; 0 for none
    flip            a step, a layer and a bit of its gradient that changes in the last rank
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trials import LAYERS

_WIDTH = 512


def daemon_seconds(process: int) -> float:
    """CPU time of the daemon so far."""
    if not process:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def digest(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def flip_bit(gradient: torch.Tensor, bit: int) -> None:
    words = gradient.view(-1).view(torch.int32)
    words[bit // 32 % words.numel()].bitwise_xor_(1 << bit % 31)


def usage() -> dict[str, Any]:
    from memtide._daemon import inspection

    kinds = inspection.inspect().kinds
    return {kind: one.host_bytes + one.ssd_bytes for kind, one in kinds.items()}


def train(out: str, options: dict[str, Any]) -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank if options["alone"] else 0)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.GELU())))
    if options["masters"]:
        import memtide

        model.bfloat16()
        optimizer: torch.optim.Optimizer = memtide.AdamW(model.parameters(), weights="master")
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trained: nn.Module = model if options["alone"] else DistributedDataParallel(model)
    torch.manual_seed(rank + 1)
    losses, seconds = [], 0.0
    for step in range(options["steps"]):
        x = torch.randn(8, _WIDTH, dtype=layers[0].weight.dtype)
        loss = trained(x).float().square().mean()
        loss.backward()
        if rank == last and options["flip"] and options["flip"][0] == step:
            flip_bit(layers[options["flip"][1]].weight.grad, options["flip"][2])
        dist.barrier()
        began = time.process_time() + (daemon_seconds(options["daemon"]) if not rank else 0.0)
        optimizer.step()
        used = time.process_time() - began
        dist.barrier()
        used += daemon_seconds(options["daemon"]) if not rank else 0.0
        seconds += used if step >= options["warm_up"] else 0.0
        optimizer.zero_grad()
        losses.append(loss.item())
    total = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(total)
    result: dict[str, Any] = {"losses": [loss.hex() for loss in losses], "digest": digest(model)}
    dist.barrier()
    if rank == 0:
        result["step_s"] = total.item() / (options["steps"] - options["warm_up"])
        result["bytes"] = usage() if options["daemon"] else {}
    dist.barrier()
    Path(f"{out}{rank}").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], json.loads(sys.argv[2]))
    dist.destroy_process_group()
