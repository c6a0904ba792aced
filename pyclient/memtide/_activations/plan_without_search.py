"""Plans which repeated blocks are recomputed, without a search.

A block is recomputed if that takes less time than moving what it saves took, cheapest first, until
as many bytes are saved less as had to be moved. The last block never is: backward needs it at once.
Everything else is kept while it fits, and moved if not.

The time of moving is measured: the copies into chunks, and the waits for chunks, of one iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.recompute import Mode
from memtide._activations.rehearsal import Rehearsed

# Attention's results are kept where they are at most this part of what a block saves.
_DEAR_PART = 4
_KEPT = BlockPlan(Choice.KEEP, Choice.KEEP, Choice.KEEP)
_PLANS = {
    Mode.ALL_BUT_INPUT: BlockPlan(Choice.KEEP, Choice.RECOMPUTE, Choice.RECOMPUTE),
    Mode.REST: BlockPlan(Choice.KEEP, Choice.KEEP, Choice.RECOMPUTE),
}


@dataclass(frozen=True)
class Moves:
    """The moves of one iteration."""

    bytes: int
    seconds: float  # The script's wait for them, in forward and in backward.


def plan(
    blocks: Sequence[nn.Module], rehearsed: Mapping[nn.Module, Rehearsed], moves: Moves
) -> ActivationPlan:
    """The plan for these blocks, in the order of their calls."""
    modes = chosen([(block, rehearsed[block]) for block in blocks if block in rehearsed], moves)
    return ActivationPlan(
        tuple(_PLANS[modes[block]] if block in modes else _KEPT for block in blocks), Choice.KEEP
    )


def mode_of(rehearsed: Rehearsed) -> Mode:
    """How a block is recomputed, if it is."""
    is_small = 0 < rehearsed.dear_bytes * _DEAR_PART <= rehearsed.saved_bytes
    return Mode.REST if is_small else Mode.ALL_BUT_INPUT


def chosen(blocks: Sequence[tuple[nn.Module, Rehearsed]], moves: Moves) -> Mapping[nn.Module, Mode]:
    """The blocks to recompute, of these in the order of their calls."""
    if not moves.bytes:
        return {}
    seconds_per_byte = moves.seconds / moves.bytes
    candidates = []
    for block, rehearsed in blocks[:-1]:
        mode = mode_of(rehearsed)
        less_bytes = rehearsed.saved_bytes - rehearsed.input_bytes
        if mode is Mode.REST:
            less_bytes -= rehearsed.dear_bytes
        if rehearsed.reason is None and rehearsed.forward_s < less_bytes * seconds_per_byte:
            candidates.append((rehearsed.forward_s / less_bytes, less_bytes, block, mode))
    candidates.sort(key=lambda candidate: candidate[0])
    modes: dict[nn.Module, Mode] = {}
    left_bytes = moves.bytes
    for _, less_bytes, block, mode in candidates:
        if left_bytes <= 0:
            break
        modes[block] = mode
        left_bytes -= less_bytes
    return modes
