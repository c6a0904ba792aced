"""Fewer bytes between data-parallel ranks: communication hooks of DistributedDataParallel.

    model = DistributedDataParallel(model)
    exchange = memtide.exchange.threshold(model, share=0.01)

Each rank sends a part of its gradients, and adds the rest to those of the next step (error
feedback). All ranks add what they get in the order of the ranks, so that they keep the same bits.
The first steps, and what is small, are exchanged whole; with `exchange.exact = True`, in all ranks,
everything is from the next step on. At the end rank 0 prints what was sent. No daemon is needed.

The errors that are left for later need as much memory as the gradients, in fp32.
"""

from memtide_methods.exchange.exchange import Exchange
from memtide_methods.exchange.hooks import low_rank, threshold

__all__ = ["Exchange", "low_rank", "threshold"]
