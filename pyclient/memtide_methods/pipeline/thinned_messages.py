"""Messages between stages that have only the largest elements of activations and of gradients.

The mathematics are those of a model with a layer between stages that sets all but the largest
elements to zero: a gradient comes back for the elements that travelled, and for no others (dynamic
communication thresholding for model parallelism: Gupta et al., Training Recommender Systems at
Scale, KDD 2021).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import NamedTuple

import torch
import torch.distributed as dist
from memtide.errors import InvalidArgument
from torch.distributed.pipelining import PipelineStage

from memtide_methods.exchange.messages import Reader, SentBytes, packed

# The number of indices that int32 can count.
_MOST_SMALL_INDICES = 2**31


@dataclass(frozen=True)
class Largest:
    """How much of a tensor stages send each other, the same in all ranks.

    `share`: of an activation's elements, those largest in magnitude; the next stage has zeros
    elsewhere. `gradient_share`: of an activation's elements, those whose gradients go back, as they
    are the largest of those that travelled. None: the gradients of all that travelled.

    The elements are counted, and found anew for each micro-batch. The paper renews a threshold from
    time to time, since counting takes longer than comparing. But what is above a threshold varies,
    while gloo's receiver must know the size of a message, and next to a stage's products of
    matrices the time does not matter. Nothing is left for later, either: the next micro-batch has
    other samples.
    """

    share: float = 0.1
    gradient_share: float | None = None

    def __post_init__(self) -> None:
        _check("share", self.share, 1)
        if self.gradient_share is not None:
            _check("gradient_share", self.gradient_share, self.share)


@dataclass
class SentByStage(SentBytes):
    """Bytes that a stage has sent to both neighbours, and those of whole tensors."""

    stage: int
    stages: int

    def summary(self) -> str:
        """In a line."""
        return (
            f"memtide.pipeline: {self.bytes / 2**20:,.1f} MiB sent by stage {self.stage} of "
            f"{self.stages} in {self.steps} steps, {self.part:.1%} of whole tensors' "
            f"{self.whole_bytes / 2**20:,.1f} MiB"
        )


class _Arriving(NamedTuple):
    """A message on its way."""

    message: torch.Tensor
    tensor: torch.Tensor  # The stage's buffer for what it has.
    places: torch.Tensor | None  # In the tensor, of what the message can be about; None: of all.
    elements: int  # In the message.


class ThinnedMessages:
    """Operations that send and receive what a stage's own ones would, in smaller messages. Used by
    the schedule's thread.

    A message is there when its operation has ended. `unpack_fwd` and `unpack_bwd` then write the
    stage's buffers. Both ends keep the places of a micro-batch's activations until its backward, so
    that its gradients travel without indices. A tensor for which indices and values would need as
    much as itself travels whole, and so does one that is not of floating point.
    """

    def __init__(self, stage: PipelineStage, send: Largest, *, prints: bool) -> None:
        """With `prints`, this process says at its end what it has sent."""
        self._stage = stage
        self._share = send.share
        self._gradient_share = send.share if send.gradient_share is None else send.gradient_share
        # By the number of a micro-batch, of each of its tensors: where those elements are that were
        # sent to the next stage, and those received from the one before.
        self._sent_places: dict[int, list[torch.Tensor | None]] = {}
        self._received_places: dict[int, list[torch.Tensor | None]] = {}
        self._activations: dict[int, list[_Arriving]] = {}
        self._gradients: dict[int, list[_Arriving]] = {}
        self.sent = SentByStage(stage.stage_index, stage.num_stages)
        if prints:
            # At the end of this process, also where it is one that multiprocessing has started.
            Finalize(None, _print, (self.sent,), exitpriority=0)

    def get_fwd_send_ops(self, number: int) -> list[dist.P2POp]:
        """The stage's."""
        operations: list[dist.P2POp] = self._stage.get_fwd_send_ops(number)
        self._sent_places[number] = [self._thin(each, None, self._share) for each in operations]
        return operations

    def get_fwd_recv_ops(self, number: int) -> list[dist.P2POp]:
        """The stage's. REQUIRES: `unpack_fwd` before the forward."""
        operations: list[dist.P2POp] = self._stage.get_fwd_recv_ops(number)
        self._activations[number] = [_expect(each, None, self._share) for each in operations]
        return operations

    def get_bwd_send_ops(self, number: int) -> list[dist.P2POp]:
        """The stage's."""
        operations: list[dist.P2POp] = self._stage.get_bwd_send_ops(number)
        all_places = self._received_places.pop(number)
        for operation, places in zip(operations, all_places, strict=True):
            self._thin(operation, places, self._gradient_share)
        return operations

    def get_bwd_recv_ops(self, number: int) -> list[dist.P2POp]:
        """The stage's. REQUIRES: `unpack_bwd` before the backward."""
        operations: list[dist.P2POp] = self._stage.get_bwd_recv_ops(number)
        all_places = self._sent_places.pop(number)
        self._gradients[number] = [
            _expect(operation, places, self._gradient_share)
            for operation, places in zip(operations, all_places, strict=True)
        ]
        return operations

    def unpack_fwd(self, number: int) -> None:
        """Writes the activations that have arrived for a micro-batch."""
        arrived = self._activations.pop(number, [])
        self._received_places[number] = [_unpack(each) for each in arrived]

    def unpack_bwd(self, number: int) -> None:
        """Writes the gradients that have arrived for a micro-batch."""
        for each in self._gradients.pop(number):
            _unpack(each)

    def _thin(
        self, operation: dist.P2POp, places: torch.Tensor | None, share: float
    ) -> torch.Tensor | None:
        """Gives a message to an operation that sends a tensor's elements at `places`. Returns the
        places of those in the message, None for all of the tensor."""
        tensor = operation.tensor
        values = tensor.reshape(-1)
        if places is not None:
            values = operation.tensor = values[places]
        count = _count(tensor, len(values), share)
        if count < len(values):
            # A NaN counts as larger than all others, so that the next stage gets it.
            chosen = values.abs().topk(count, sorted=False).indices.to(_index_type(tensor))
            operation.tensor = packed([chosen, values[chosen]])
            places = chosen if places is None else places[chosen]
        self.sent.bytes += operation.tensor.nbytes
        self.sent.whole_bytes += tensor.nbytes
        return places


def _expect(operation: dist.P2POp, places: torch.Tensor | None, share: float) -> _Arriving:
    """Gives room for a message to an operation that receives a tensor."""
    tensor = operation.tensor
    possible = tensor.numel() if places is None else len(places)
    count = _count(tensor, possible, share)
    if count < possible:
        size_bytes = count * (_index_type(tensor).itemsize + tensor.itemsize)
        operation.tensor = tensor.new_empty(size_bytes, dtype=torch.uint8)
    elif places is not None:
        operation.tensor = tensor.new_empty(count)
    return _Arriving(operation.tensor, tensor, places, count)


def _unpack(arrived: _Arriving) -> torch.Tensor | None:
    """Writes the tensor. Returns the places of what was in the message, None for all."""
    message, tensor, places, elements = arrived
    if message is tensor:
        return None
    values = message
    if message.dtype != tensor.dtype:
        reader = Reader(message)
        chosen = reader.take([elements], _index_type(tensor))
        values = reader.take([elements], tensor.dtype)
        places = chosen if places is None else places[chosen]
    assert places is not None
    with torch.no_grad():
        flat = torch.zeros_like(tensor, memory_format=torch.contiguous_format).view(-1)
        flat[places] = values
        tensor.copy_(flat.view(tensor.shape))
    return places


def _count(tensor: torch.Tensor, possible: int, share: float) -> int:
    """How many of the elements that a message can be about are in it."""
    wanted = min(max(1, round(share * tensor.numel())), possible)
    size_bytes = wanted * (_index_type(tensor).itemsize + tensor.itemsize)
    is_smaller = size_bytes < possible * tensor.itemsize
    return wanted if tensor.is_floating_point() and is_smaller else possible


def _index_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.int32 if tensor.numel() <= _MOST_SMALL_INDICES else torch.int64


def _check(name: str, share: float, most: float) -> None:
    if not 0 < share <= most:
        raise InvalidArgument(f"{name} is {share}; it must be above 0, and {most} at most")


def _print(sent: SentByStage) -> None:
    # In one write, as all stages end at once.
    sys.stderr.write(sent.summary() + "\n")
