"""DeepSpeed's configuration for a given memory, and the format of a log line.

Imports no DeepSpeed. As in DeepSpeed's own settings, sizes are in elements of fp32, but those whose
names end in _bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ELEMENT_BYTES = 4
# A group of parameters needs four: master, momentum, variance and gradient. Three groups are in
# memory at a time: one is stepped, the one before it is written, and the next one is read.
_OPTIMIZER_BUFFERS = 12
# DeepSpeed allocates one more, as large as a group, to write parameters after a step.
_OTHER_BUFFERS = 1
# One for the weight of the module that computes (biases stay in memory), two to prefetch weights.
_LEAST_PARAMETER_BUFFERS = 3


@dataclass(frozen=True)
class Buffers:
    """The size of DeepSpeed's buffers, and how many parameters and the optimizer have."""

    largest_parameter: int
    for_parameters: int
    for_optimizer: int

    @property
    def group(self) -> int:
        """A group of parameters is closed when it has this many elements."""
        return self.largest_parameter

    @property
    def elements(self) -> int:
        """A buffer's size. It fits any group, even if its last parameter is the largest of all."""
        return 2 * self.largest_parameter

    @classmethod
    def within(cls, memory_bytes: int, largest_parameter: int) -> Buffers:
        """As many buffers as fit in `memory_bytes`. ValueError if DeepSpeed needs more of them."""
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
    """A line in the format of examples/train_gpt.py."""
    return json.dumps({"step": step, "loss": loss.hex(), "seconds": seconds}) + "\n"
