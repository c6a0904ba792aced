"""How DeepSpeed is set up for a given memory, and a line of a log. Needs no DeepSpeed itself.

Sizes are in elements of fp32 where DeepSpeed's own names are, in bytes where a name says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ELEMENT_BYTES = 4
# Of a group of parameters: master, momentum, variance and gradient, while they are stepped, of the
# group before, while they are written, and of the next, while they are read.
_OPTIMIZER_BUFFERS = 12
# DeepSpeed takes one more, as large as a group, to write parameters after a step.
_OTHER_BUFFERS = 1
# Of the module that computes (its weight; biases stay in memory), and of the ones read ahead.
_LEAST_PARAMETER_BUFFERS = 3


@dataclass(frozen=True)
class Buffers:
    """Of which size, and how many for parameters and how many for the optimizer."""

    largest_parameter: int
    for_parameters: int
    for_optimizer: int

    @property
    def group(self) -> int:
        """A group of parameters is closed when it has this many elements."""
        return self.largest_parameter

    @property
    def elements(self) -> int:
        """Room for any group: the parameter that closes one may be the largest of all."""
        return 2 * self.largest_parameter

    @classmethod
    def within(cls, memory_bytes: int, largest_parameter: int) -> Buffers:
        """As many as fit in these bytes; ValueError, where DeepSpeed could not work with them."""
        buffer_bytes = 2 * largest_parameter * _ELEMENT_BYTES
        for_parameters = memory_bytes // buffer_bytes - _OPTIMIZER_BUFFERS - _OTHER_BUFFERS
        if for_parameters < _LEAST_PARAMETER_BUFFERS:
            least = (_OPTIMIZER_BUFFERS + _OTHER_BUFFERS + _LEAST_PARAMETER_BUFFERS) * buffer_bytes
            raise ValueError(
                f"{memory_bytes} bytes for DeepSpeed's buffers; with parameters of up to "
                f"{largest_parameter} elements it needs {least}"
            )
        return cls(largest_parameter, for_parameters, _OPTIMIZER_BUFFERS)


def zero_infinity(files: Path, batch: int, buffers: Buffers) -> dict[str, Any]:
    """DeepSpeed's configuration: ZeRO-3 in fp32, all states in files, pipelined."""
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # By default it clips at a norm of 1.
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": buffers.group,
            "stage3_max_live_parameters": buffers.elements,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": buffers.elements,
            "stage3_param_persistence_threshold": 10_000,
            "reduce_bucket_size": buffers.elements,
            "overlap_comm": False,
            "offload_param": {
                "device": "nvme",
                "nvme_path": str(files),
                "buffer_count": buffers.for_parameters,
                "buffer_size": buffers.elements,
                "max_in_cpu": 0,
            },
            "offload_optimizer": {
                "device": "nvme",
                "nvme_path": str(files),
                "buffer_count": buffers.for_optimizer,
                "pipeline_read": True,
                "pipeline_write": True,
            },
        },
        "aio": {
            "block_size": 2**20,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
        },
    }


def log_line(step: int, loss: float, seconds: float) -> str:
    """As examples/train_gpt.py writes it."""
    return json.dumps({"step": step, "loss": loss.hex(), "seconds": seconds}) + "\n"
