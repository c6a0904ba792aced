"""Helpers of the scripts: a digest of everything that must be equal, and the result file."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """A hash over shapes, types, strides and bytes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}".encode())
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        # cpu() does not copy from a fake GPU whose tensors are on the CPU.
        on_host = flat.to("cpu", copy="ON_GPU" in os.environ)
        sha.update(on_host.numpy().tobytes())
    return sha.hexdigest()


def finish(losses: Iterable[float], *modules: torch.nn.Module) -> None:
    """Writes losses, to the bit, and digests to the file that the environment names in RESULT."""
    result = {
        "losses": [float(loss).hex() for loss in losses],
        "digests": [digest(module.state_dict().values()) for module in modules],
        "argv": sys.argv[1:],
    }
    Path(os.environ["RESULT"]).write_text(json.dumps(result), encoding="utf-8")


def leave() -> None:
    """Ends the process group, once no variable refers to it or to a model that exchanges gradients.

    Its threads end with it. One that still waits for the interpreter's lock when the interpreter
    ends aborts the process, which plain torch does in one of ten runs on a busy machine."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
