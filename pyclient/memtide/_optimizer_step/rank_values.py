"""Ranks that step by themselves, and should all come to the same values: says which parameter has
other values in this rank than in rank 0.

Data-parallel ranks on devices do not compare gradients. One that has computed or received a wrong
bit goes on with a model of its own, and no loss need show it. So, ever more seldom, rank 0 puts the
sum of each parameter's bits into the process group's store. The other ranks compare it with theirs
in a later step, when it is there, so that no rank waits for another.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from memtide._memory.tensor_parts import is_sharded
from memtide._optimizer_step.common_parameters import is_rank
from memtide._util.listed import listed
from memtide._util.step_phase import Step, StepPhase

# A check reads all parameters once, as a step does several times.
_MOST_STEPS_BETWEEN = 64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

NameAt = Callable[[int], str]  # The name of the parameter at an address.


class RankValues(StepPhase):
    """Compares what the optimizers of this process step. Used by the thread that trains."""

    def __init__(self, name_at: NameAt) -> None:
        self._name_at = name_at
        self._of: weakref.WeakKeyDictionary[Optimizer, OptimizerValues] = (
            weakref.WeakKeyDictionary()
        )
        self._optimizers = 0  # All that have stepped: ranks number them alike.

    def after_step(self, step: Step) -> None:
        if not is_rank():
            return
        optimizer = step.optimizer
        if optimizer not in self._of:
            store = dist.distributed_c10d._get_default_store()
            key = f"memtide/values/{self._optimizers}"
            self._of[optimizer] = OptimizerValues(store, key, dist.get_rank(), self._name_at)
            self._optimizers += 1
        self._of[optimizer].after_step(
            [parameter for group in optimizer.param_groups for parameter in group["params"]]
        )


class OptimizerValues:
    """Compares what one optimizer steps."""

    def __init__(self, store: Any, key: str, rank: int, name_at: NameAt) -> None:
        """`store`: torch's, that all ranks have. `key`: the same in all of them, and of no other
        optimizer."""
        self._store = store
        self._key = key
        self._rank = rank
        self._name_at = name_at
        self._steps = 0
        self._next = 1  # The step after which sums are made.
        # The last sums, and the step after which they were made; none: they were compared.
        self._pending: tuple[int, list[int]] | None = None
        # The last step after which all values were equal, and how many there were.
        self._last_equal = 0, 0
        self._has_ended = False

    def after_step(self, parameters: Sequence[torch.Tensor]) -> None:
        """All ranks call it in their steps of the same number."""
        if self._has_ended:
            return
        self._steps += 1
        if is_due := self._steps == self._next:
            self._next += min(self._steps, _MOST_STEPS_BETWEEN)
            before, self._pending = self._pending, (self._steps, _sums(parameters))
        if self._pending is None:
            return
        step, ours = self._pending
        try:
            if self._rank:
                self._compare(parameters, step, ours)
            elif is_due:
                self._store.set(self._key_of(step), array("q", ours).tobytes())
                if before is not None:  # Each rank has had a step to compare those.
                    self._store.delete_key(self._key_of(before[0]))
        except RuntimeError:  # Rank 0, which may have the store, has ended.
            self._has_ended = True

    def _compare(self, parameters: Sequence[torch.Tensor], step: int, ours: list[int]) -> None:
        if not self._store.check([self._key_of(step)]):
            return
        theirs = array("q", self._store.get(self._key_of(step)))
        self._pending = None
        if not len(theirs) == len(ours) == len(parameters):
            return  # The ranks train different models, or the optimizer has new parameters.
        differing = [n for n, our_sum in enumerate(ours) if our_sum != theirs[n]]
        if not differing:
            self._last_equal = step, len(ours)
        elif self._last_equal[1] == len(ours):
            self._say([self._name_at(parameters[n].data_ptr()) for n in differing], step)
            self._has_ended = True

    def _say(self, names: list[str], step: int) -> None:
        print(
            f"memtide: in rank {self._rank}, the values of {listed(names)} differ from those of "
            f"rank 0 after step {step}, and did not after step {self._last_equal[0]}: these ranks "
            "train different models since, as if one of them had a wrong gradient (said once)",
            file=sys.stderr,
        )

    def _key_of(self, step: int) -> str:
        return f"{self._key}/{step}"


def _sums(parameters: Sequence[torch.Tensor]) -> list[int]:
    """The sum of each parameter's bits, which one altered bit changes for sure; 0 for a part that
    FSDP has given to this rank."""
    with torch.no_grad():
        return [0 if is_sharded(each) else _sum_of_bits(each) for each in parameters]


def _sum_of_bits(parameter: torch.Tensor) -> int:
    real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    return int(real.view(_BITS[real.itemsize]).sum(dtype=torch.int64))
