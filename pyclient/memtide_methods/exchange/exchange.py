"""The exchange of one model's gradients: for each bucket of DDP, one collective of a fixed size,
for which backward waits. Ranks do not have to agree on a size first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Protocol

import torch
import torch.distributed as dist
from memtide.errors import InvalidArgument
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from memtide_methods.exchange.messages import SentBytes

# DDP may change its buckets after the first step.
_LEAST_EXACT_STEPS = 2


class Codec(Protocol):
    """Makes messages of one bucket, and keeps what they leave out for the next one."""

    def encode(self, gradient: torch.Tensor) -> torch.Tensor:
        """The message for a flat gradient: bytes, as many in each rank and step."""

    def add(self, message: torch.Tensor, total: torch.Tensor) -> None:
        """Adds the gradient of a rank's message to `total`, in fp32."""


NewCodec = Callable[[GradBucket], Codec]


@dataclass
class Sent(SentBytes):
    """Bytes that a rank has sent, and those of all-reduce, both as rings of N ranks send them:
    N - 1 times a message to gather it, and 2 (N - 1) / N of a gradient to reduce it."""

    exchange: str

    def summary(self) -> str:
        """In a line."""
        return (
            f"memtide.exchange.{self.exchange}: {self.bytes / 2**20:,.1f} MiB sent by each rank in "
            f"{self.steps} steps, {self.part:.1%} of all-reduce's "
            f"{self.whole_bytes / 2**20:,.1f} MiB"
        )


class Exchange:
    """Registers itself with a model. Used by the thread that trains, and by DDP's."""

    def __init__(
        self, name: str, model: DistributedDataParallel, new_codec: NewCodec, exact_steps: int
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise InvalidArgument(
                f"memtide.exchange.{name} takes a DistributedDataParallel, not a "
                f"{type(model).__name__}: wrap the model first"
            )
        self.sent = Sent(name)
        # Whether steps exchange everything, as all-reduce does. Set it in all ranks before the same
        # step. Values that were left for later stay until an exchange that is not exact.
        self.exact = False
        self._exact_steps = max(exact_steps, _LEAST_EXACT_STEPS)
        self._is_exact_step = True
        self._new_codec = new_codec
        self._codecs: dict[int, Codec] = {}  # By the bucket's number.
        self._group = model.process_group
        self._ranks = dist.get_world_size(self._group)
        # Torch refuses annotations that are strings, as in this file.
        model.register_comm_hook(None, lambda state, bucket: self._exchange(bucket))
        if dist.get_rank(self._group) == 0:
            # At the end of this process, also where it is one that multiprocessing has started.
            Finalize(None, _print, (self.sent,), exitpriority=0)

    def _exchange(self, bucket: GradBucket) -> Future[torch.Tensor]:
        if bucket.index() == 0:
            self._is_exact_step = self.exact or self.sent.steps < self._exact_steps
        self.sent.steps += bucket.is_last()
        gradient = bucket.buffer()
        whole_bytes = 2 * gradient.nbytes * (self._ranks - 1) // self._ranks
        self.sent.whole_bytes += whole_bytes
        if self._is_exact_step or not gradient.is_floating_point():
            self.sent.bytes += whole_bytes
            return self._reduce(gradient)
        codec = self._codecs.get(bucket.index())
        if codec is None:
            codec = self._codecs[bucket.index()] = self._new_codec(bucket)
        message = codec.encode(gradient)
        self.sent.bytes += message.nbytes * (self._ranks - 1)
        messages = [torch.empty_like(message) for _ in range(self._ranks)]
        dist.all_gather(messages, message, group=self._group)
        total = torch.zeros_like(gradient, dtype=torch.float32)
        for each in messages:
            codec.add(each, total)
        return _done(gradient.copy_(total.div_(self._ranks)))

    def _reduce(self, gradient: torch.Tensor) -> Future[torch.Tensor]:
        # DDP without a hook multiplies. Torch's own hook divides, which gives other bits.
        dist.all_reduce(gradient.mul_(1 / self._ranks), group=self._group)
        return _done(gradient)


def _done(gradient: torch.Tensor) -> Future[torch.Tensor]:
    # A function of Python that is called when a collective has ended belongs to a thread of the
    # process group, which aborts the process if the interpreter ends before it has let go of it.
    done: Future[torch.Tensor] = Future(devices=[] if gradient.is_cpu else [gradient.device])
    done.set_result(gradient)
    return done


def _print(sent: Sent) -> None:
    print(sent.summary(), file=sys.stderr)
