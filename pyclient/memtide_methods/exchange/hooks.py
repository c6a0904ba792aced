"""The functions that a script calls."""

from __future__ import annotations

from memtide.errors import InvalidArgument
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from memtide_methods.exchange.exchange import Exchange
from memtide_methods.exchange.low_rank import LowRank
from memtide_methods.exchange.threshold import Threshold


def threshold(
    model: DistributedDataParallel,
    *,
    share: float = 0.01,
    renew_every: int = 2000,
    exact_steps: int = 100,
) -> Exchange:
    """Exchanges the elements of a gradient that are above a threshold.

    The threshold of each bucket is what `share` of its elements exceed, found anew every
    `renew_every` steps, since finding it costs more than using it (dynamic communication
    thresholding: Gupta et al., Training Recommender Systems at Scale, KDD 2021). A rank sends a
    quarter more than `share` at most. The first `exact_steps` steps exchange everything.
    """
    _check("share", 0 < share <= 1, share, "above 0, and 1 at most")
    _check("renew_every", renew_every >= 1, renew_every, "1 or more")

    def new(bucket: GradBucket) -> Threshold:
        return Threshold(bucket.buffer(), share, renew_every)

    return Exchange("threshold", model, new, exact_steps)


def low_rank(model: DistributedDataParallel, *, rank: int = 4, exact_steps: int = 100) -> Exchange:
    """Exchanges matrices of a gradient as products of two that have `rank` columns.

    They are the gradient's projection on its principal components, which are not computed anew for
    each step, but followed from step to step (streaming batch principal component analysis: Hoskins
    et al., Streaming Batch Eigenupdates, Frontiers in Neuroscience 2019). Vectors, and matrices of
    which that would save less than half, are exchanged whole. The first `exact_steps` steps
    exchange everything.
    """
    _check("rank", rank >= 1, rank, "1 or more")
    return Exchange("low_rank", model, lambda bucket: LowRank(bucket, rank), exact_steps)


def _check(name: str, is_valid: bool, value: float, wanted: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise InvalidArgument(f"{name} is {value}; it must be {wanted}")
