"""Trains examples/train_gpt.py's model under DeepSpeed ZeRO-Infinity, with all states in files.

    zero_infinity.py --nvme DIR --memory MIB [--layers N ...] --steps N --log FILE

The model, the batches, the optimizer's options and the log are those of the example; only what a
script must change for DeepSpeed is changed. Needs bench/peers/setup, and lib.sh's environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

# DeepSpeed's launcher would set these variables; here is one process without it. Port 0 is any
# free port.
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))

import deepspeed  # noqa: E402
import settings  # noqa: E402
import torch  # noqa: E402
import train_gpt  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402
from torch.nn import functional  # noqa: E402


def make_engine(options: argparse.Namespace) -> Any:
    """Makes the example's model, whose parts DeepSpeed writes to files as soon as they exist."""
    buffers = settings.Buffers.within(options.memory * 2**20, 4 * options.width**2)
    config = settings.zero_infinity(options.nvme, options.batch, buffers)
    # Without Init, deepspeed.initialize would store a model of fp32 in files of bf16 on a CPU.
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = train_gpt.Gpt(options.layers, options.width, options.context)
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=3e-4, weight_decay=0.01, adamw_mode=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    corpus = train_gpt.read_corpus()
    engine = make_engine(options)
    with options.log.open("w", encoding="ascii") as log:
        for step in range(1, options.steps + 1):
            began = time.perf_counter()
            inputs, targets = train_gpt.draw_batch(
                corpus, options.batch, options.context, generator
            )
            logits = engine(inputs)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            engine.backward(loss)
            engine.step()
            value, seconds = loss.item(), time.perf_counter() - began
            log.write(settings.log_line(step, value, seconds))
            log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nvme", type=Path, required=True, help="a directory for the files")
    parser.add_argument("--memory", type=int, required=True, help="size of all buffers, in MiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    train(options)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
