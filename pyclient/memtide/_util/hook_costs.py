"""The time that memtide's hooks in torch take in the threads of a script, and how often.

Waits for leases are not part of it: the client counts them (`Client.stats`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter_ns

# To read the clock for each operation would take 1 to 2% of what its dispatch does.
SAMPLED = 16


@dataclass
class HookCosts:
    """Counters since the beginning of the process. Two threads that add at once may lose one."""

    gradients: int = 0  # Moved into chunks.
    gradient_ns: int = 0
    operations: int = 0  # Passed on by lease dispatch, views left out.
    dispatch_ns: int = 0  # Estimated from one operation of SAMPLED.

    def begins_sample(self) -> int:
        """Counts an operation. The time, if this one is to be measured; 0: it is not."""
        self.operations += 1
        return perf_counter_ns() if self.operations % SAMPLED == 0 else 0

    def end_sample(self, began_ns: int) -> None:
        """Adds what has passed since `began_ns`, for the operations between samples, too."""
        self.dispatch_ns += SAMPLED * (perf_counter_ns() - began_ns)

    def since(self, before: HookCosts) -> dict[str, int]:
        """The counts since `before`, a copy."""
        return {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
