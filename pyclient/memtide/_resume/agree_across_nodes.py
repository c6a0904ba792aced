"""The ranks of several nodes agree on the step from which they go on.

Each node's ranks commit together, and other nodes' by themselves. So when nodes end, they may have
committed different steps, and a node that is lost has none. When the process group is there, each
rank sends all others what it has. So all of them know the furthest step, the ranks that have it,
and those that get it from one of these, by broadcasts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from memtide._resume.manifest_writer import parameters_of
from memtide._resume.step_manifest import StepManifest
from memtide.errors import FailedPrecondition


@dataclass(frozen=True)
class Offer:
    """The state that one rank has, to go on from."""

    wanted: bool  # It resumes, rather than to begin anew.
    group: str = ""  # The training of all nodes that has committed it (StepManifest.group).
    steps: tuple[int, ...] = ()  # The steps of each optimizer; none: the rank has nothing.
    lost: str = ""  # Why nothing can go on from it.
    own_id: str = ""  # training.own_id() of this node.


@dataclass(frozen=True)
class Agreement:
    """The state that ranks go on from."""

    group: str
    source: int = -1  # The rank that sends; -1: all begin anew.
    receivers: tuple[int, ...] = ()


def offer_of(manifest: StepManifest | None, own_id: str, *, wanted: bool) -> Offer:
    """The offer of a rank whose last commit has this manifest."""
    if manifest is None:
        return Offer(wanted=False, own_id=own_id)
    steps = tuple(optimizer.steps for optimizer in manifest.optimizers)
    return Offer(wanted, manifest.group, steps, manifest.lost, own_id)


def agreement_of(offers: list[Offer]) -> Agreement:
    """All ranks' agreement, the same in each. FailedPrecondition: no rank can go on."""
    wanted = [offer for offer in offers if offer.wanted]
    if not wanted:
        return Agreement(offers[0].own_id)
    furthest = max(wanted, key=lambda offer: sum(offer.steps))
    for rank, offer in enumerate(offers):
        if offer.wanted and offer.lost:
            raise FailedPrecondition(f"rank {rank} cannot be resumed: {offer.lost}")
    having = [offer for offer in offers if offer.group == furthest.group and not offer.lost]
    best = max((offer.steps for offer in having), key=sum)
    has_best = [
        offer.group == furthest.group and not offer.lost and offer.steps == best for offer in offers
    ]
    receivers = tuple(rank for rank, has in enumerate(has_best) if not has)
    return Agreement(furthest.group, has_best.index(True), receivers)


class Exchange:
    """The part of this rank in an agreement. REQUIRES: torch.distributed is initialized."""

    def __init__(self, agreement: Agreement, own: StepManifest | None) -> None:
        """Waits for all ranks. `own`: what this one has."""
        self.agreement = agreement
        rank = dist.get_rank()
        self.receives = rank in agreement.receivers
        self.sends = bool(agreement.receivers) and rank == agreement.source
        self.manifest = own if agreement.source >= 0 else None
        if not agreement.receivers:
            return
        sent = [self.manifest if self.sends else None]
        dist.broadcast_object_list(sent, agreement.source)
        if self.receives:
            self.manifest = sent[0]
        # The script may use the group of all ranks before a model.
        self._group = dist.new_group([agreement.source, *agreement.receivers], backend="gloo")

    def check(self, optimizers: Iterable[Optimizer]) -> None:
        """FailedPrecondition: other ranks are not known to have the same states as this one."""
        # isinstance() would follow proxies of objects that are gone.
        models: list[DistributedDataParallel] = [
            one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel)
        ]
        same = {
            id(parameter)
            for model in models
            if model.process_group.size() == dist.get_world_size()
            for name, parameter in model.module.named_parameters()
            if name not in model.parameters_to_ignore
        }
        for optimizer in optimizers:
            if any(id(parameter) not in same for parameter in parameters_of(optimizer)):
                raise FailedPrecondition(
                    "the nodes have committed different steps, or one has been lost, and "
                    f"{type(optimizer).__name__} steps parameters that are in no "
                    "DistributedDataParallel of all ranks, so that no other rank is known to have "
                    "the same: go on from a checkpoint"
                )

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Sends the elements of a dense tensor in ordinary memory, or receives them."""
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        dist.broadcast(flat, self.agreement.source, self._group)


def agree(own: StepManifest | None, own_id: str, *, wanted: bool) -> Exchange:
    """Exchanges what all ranks have. REQUIRES: torch.distributed is initialized, and all ranks call
    at the same point. FailedPrecondition: as `agreement_of`."""
    offers = [Offer(wanted=False)] * dist.get_world_size()
    dist.all_gather_object(offers, offer_of(own, own_id, wanted=wanted))
    return Exchange(agreement_of(offers), own)
