"""The versions of a stage that a named job commits, so that a later process goes on to the bit.

A batch's gradient is that at the version before the newest one. So a job that is resumed needs both
of them, and a named job commits with a step what optimizers have (docs/decisions/0038). The older
version is therefore that of an optimizer, which makes no step.
"""

from __future__ import annotations

from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.optim import Optimizer

_VERSION = "version"


class OlderVersion(Optimizer):
    """Has the parameters of the version before the newest one."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        """`parameters`: by their names in the stage's module. At the first forward they are those
        of the job that is resumed, if one is."""
        self.by_name = parameters
        super().__init__(parameters.values(), {})

    @property
    def newest(self) -> int:
        """The number of the version after this one; 0: there is no version before the newest one
        yet. Committed with the parameters."""
        version: int = self.state.get(self._first, {}).get(_VERSION, 0)
        return version

    def come_to(self, newest: int, parameters: dict[str, nn.Parameter]) -> None:
        """The next step makes version `newest`, and these are the parameters before it."""
        for name, older in self.by_name.items():
            older.data = parameters[name].data
        self.state[self._first][_VERSION] = newest

    @property
    def _first(self) -> nn.Parameter:
        return next(iter(self.by_name.values()))


def committing() -> Runtime | None:
    """memtide in this process, if its job is a named one, whose steps are committed."""
    runtime = runtimes.current()
    return runtime if runtime is not None and runtime.resumed_job is not None else None
