"""The time that products of matrices take on a device.

A kernel computes a result in tiles, one on a multiprocessor at a time, so that the last ones take
as long as if there were one for each. A product takes its operations by the reached peak, less
what its last tiles leave idle, or its bytes by the rate of memory, whichever is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memtide._plan_file.model import Product

# Rows and columns of a result's tiles: those with which large products reach the peak.
_TILES = ((128, 256), (256, 128), (128, 128))


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The rates and multiprocessors of a device that multiplies."""

    flop_per_s: float
    memory_bytes_per_s: float
    multiprocessors: int | None  # None: not known, and no tile is idle.

    def seconds(self, rows: float, inner: float, columns: float, element_bytes: float) -> float:
        """One product of `rows` x `inner` and `inner` x `columns`."""
        flop = 2 * rows * inner * columns
        passed = (rows * inner + inner * columns + rows * columns) * element_bytes
        rate = self.flop_per_s * self._busy(rows, columns)
        return max(flop / rate, passed / self.memory_bytes_per_s)

    def _busy(self, rows: float, columns: float) -> float:
        """The share of the time of all multiprocessors in which they compute."""
        count = self.multiprocessors
        if count is None:
            return 1.0
        return max(_share(rows, columns, tile, count) for tile in _TILES)


def _share(rows: float, columns: float, tile: tuple[int, int], multiprocessors: int) -> float:
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    waves = math.ceil(tiles / multiprocessors)
    return rows * columns / (tile[0] * tile[1] * waves * multiprocessors)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of a block's products."""

    forward: float
    inputs: float  # Gradients of what they are given.
    weights: float  # Gradients of the weights that are trained.


def passes(
    products: tuple[Product, ...], tokens: float, multiplier: Multiplier, element_bytes: float
) -> Passes:
    """All products of a block, for this number of tokens."""
    forward = inputs = weights = 0.0
    for product in products:
        each, size = product.active * tokens / product.count, element_bytes
        forward += product.count * multiplier.seconds(each, product.inputs, product.outputs, size)
        inputs += product.count * multiplier.seconds(each, product.outputs, product.inputs, size)
        if product.trained:
            weights += product.count * multiplier.seconds(
                product.inputs, each, product.outputs, size
            )
    return Passes(forward=forward, inputs=inputs, weights=weights)
