"""One limit of a budget, on host memory or on a device's: what readings leave for activations."""

from __future__ import annotations

from dataclasses import dataclass

# The slack's part of the limit in the first iteration, of which nothing is known yet, and later.
_FIRST_SLACK, _SLACK = 8, 16
# The pool's part of what it shares with activations, in percent.
_POOL_PERCENT = 45


@dataclass(frozen=True)
class Reading:
    """The bytes of a limit that are used at a moment. The sum is all that is used."""

    own_bytes: int  # By the script and the framework, beside kept activations.
    fixed_bytes: int  # By what does not follow the script: the daemon, a GPU's contexts.
    pool_bytes: int
    kept_bytes: int  # By kept activations.
    # The most of own and kept bytes together since the last reading.
    most_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """All of it."""
        return self.own_bytes + self.fixed_bytes + self.pool_bytes + self.kept_bytes


class Limit:
    """A limit, and the readings of it so far."""

    def __init__(self, bytes_: int, begun_pool_bytes: int) -> None:
        """`begun_pool_bytes`: what the pool began with, and may become again."""
        self.bytes = bytes_
        self.used_bytes = 0  # At the latest reading.
        self.most_used_bytes = self.most_own_bytes = 0
        self.left_bytes = 0  # Bytes left for chunks and activations together.
        self.allowance_bytes = 0  # Bytes left for activations.
        self._begun_pool_bytes = begun_pool_bytes
        self._peak_bytes = self._peak_before_bytes = 0  # Own bytes, of this iteration and the last.
        self._kept_before_bytes = 0
        self._iterations = 0

    @property
    def peak_bytes(self) -> int:
        """The most that the script used itself, in this iteration and the last one."""
        return max(self._peak_bytes, self._peak_before_bytes)

    def note(self, reading: Reading) -> None:
        """Takes a reading into account."""
        # How much was kept while memory rose between two readings is not known. It is taken to be
        # the more of the two: what rises in an operation falls before its tensors are dropped.
        kept_bytes = max(reading.kept_bytes, self._kept_before_bytes)
        self._kept_before_bytes = reading.kept_bytes
        self.used_bytes = reading.used_bytes
        own_bytes = max(reading.own_bytes, reading.most_bytes - kept_bytes)
        others_bytes = reading.fixed_bytes + reading.pool_bytes
        used_bytes = max(reading.used_bytes, reading.most_bytes + others_bytes)
        self._peak_bytes = max(self._peak_bytes, own_bytes)
        self.most_own_bytes = max(self.most_own_bytes, own_bytes)
        self.most_used_bytes = max(self.most_used_bytes, used_bytes)
        slack_bytes = self.bytes // (_SLACK if self._iterations else _FIRST_SLACK)
        left_bytes = self.bytes - self.peak_bytes - reading.fixed_bytes - slack_bytes
        self.left_bytes = max(0, left_bytes)
        # Where the script needs more than was expected, the pool is to shrink. Shrinking takes
        # time, and activations do not get bytes that the pool has not given up yet. The pool may
        # take back bytes that it has given up for the script.
        pool_bytes = min(self._begun_pool_bytes, left_bytes * _POOL_PERCENT // 100)
        self.allowance_bytes = max(0, left_bytes - max(pool_bytes, reading.pool_bytes))

    def forget_peaks(self) -> None:
        """Readings so far say nothing about what the script needs."""
        self._peak_bytes = self._peak_before_bytes = 0

    def end_iteration(self) -> None:
        """From here on, the iteration that ends is the last one."""
        self._iterations += 1
        self._peak_before_bytes, self._peak_bytes = self._peak_bytes, 0
