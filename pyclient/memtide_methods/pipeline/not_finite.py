"""Says in which stage something infinite or NaN begins."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch.distributed.pipelining import PipelineStage

# Tensors that a stage has received, and tensors that it has computed.
_INPUT, _FROM_NEXT = "input", "gradient of the output"
_OUTPUT, _SENT_BACK, _OF_PARAMETERS = "output", "gradient of the input", "gradients"


class NotFinite:
    """Looks at what a stage receives and computes, and says once if it is infinite or NaN. Training
    goes on as without it. Used by the schedule's thread.

    The findings stay where the tensors are until the end of a batch, so that a GPU is waited for
    once a batch.
    """

    def __init__(self, stage: PipelineStage) -> None:
        self._stage = stage
        # By batch, as the next one begins before one ends.
        self._is_finite: dict[int, dict[str, list[torch.Tensor]]] = {}
        self._has_told = False

    def after_forward(
        self, batch: int, number: int, result: torch.Tensor | tuple[torch.Tensor, ...]
    ) -> None:
        """A micro-batch has been computed. `result`: the output, of the last stage the loss."""
        if not self._stage.is_first:
            received = (info.buffer for info in self._stage.args_recv_info[number])
            self._look(batch, _INPUT, received)
        self._look(batch, _OUTPUT, result if isinstance(result, tuple) else (result,))

    def after_backward(self, batch: int, number: int) -> None:
        """Its gradients have been computed, and are not sent yet."""
        if not self._stage.is_last:
            received = (info.buffer for info in self._stage.grad_recv_info[number])
            self._look(batch, _FROM_NEXT, received)
        if not self._stage.is_first:
            self._look(batch, _SENT_BACK, self._stage.bwd_cache[number])

    def end_batch(self, batch: int, shown: int, gradients: dict[str, torch.Tensor]) -> None:
        """All gradients of the stage's parameters are there, by their names. `shown`: the number of
        the batch in the training."""
        self._look(batch, _OF_PARAMETERS, gradients.values())
        found = self._is_finite.pop(batch, {})
        flags = [flag for flags in found.values() for flag in flags]
        if flags and not self._has_told and not bool(torch.stack(flags).all()):
            wrong = {what for what in found if not all(bool(flag) for flag in found[what])}
            self._tell(shown, wrong, gradients)

    def _look(self, batch: int, what: str, tensors: Iterable[torch.Tensor | None]) -> None:
        if not self._has_told:
            self._is_finite.setdefault(batch, defaultdict(list))[what] += [
                tensor.detach().isfinite().all()
                for tensor in tensors
                if tensor is not None and tensor.is_floating_point()
            ]

    def _tell(self, batch: int, wrong: set[str], gradients: dict[str, torch.Tensor]) -> None:
        number, stages = self._stage.stage_index, self._stage.num_stages
        computed = []
        if _OUTPUT in wrong:
            computed.append("the loss" if self._stage.is_last else "the output")
        if _SENT_BACK in wrong:
            computed.append("the gradient of the input")
        if _OF_PARAMETERS in wrong:
            name = next(name for name, its in gradients.items() if not its.isfinite().all())
            computed.append(f"the gradient of {name}")
        if not computed:
            return  # A neighbour has sent it, and says so.
        self._has_told = True
        if _INPUT in wrong:
            origin = f"as is what stage {number - 1} has sent"
        elif _OUTPUT not in wrong and _FROM_NEXT in wrong:
            origin = f"as is what stage {number + 1} has sent"
        else:
            origin = "and it begins here"
        # In one write, as all stages may have the same output.
        sys.stderr.write(
            f"memtide.pipeline: in stage {number} of {stages}, in batch {batch}, infinite or NaN: "
            f"{', '.join(computed)}, {origin} (said once)\n"
        )
