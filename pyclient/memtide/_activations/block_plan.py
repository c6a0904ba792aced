"""Plans which repeated blocks are recomputed, where activations do not fit the budget.

The first iteration finds the blocks. If something had to be moved in it, the second one rehearses
them. Then a block is recomputed if that takes less time than moving what it saves took, cheapest
first, until as many bytes are saved less as had to be moved. The last block never is: backward
needs it at once. Everything else stays as it was: kept while it fits, and moved if not.

The time of moving is measured: the copies into chunks, and the waits for chunks, of the iteration
before. Where all fits, nothing is planned, and nothing is rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from memtide._activations.blocks import BlockFinder
from memtide._activations.choices import Choices
from memtide._activations.recompute import Mode, Recompute, Replacer
from memtide._activations.rehearsal import Rehearsal, Rehearsed

# Attention's results are kept where they are at most this part of what a block saves.
_DEAR_PART = 4


@dataclass(frozen=True)
class Moves:
    """What one iteration moved."""

    bytes: int
    seconds: float  # That the script waited for it, in forward and in backward.


class BlockPlan:
    """The plan of one process, and the iterations that lead to it."""

    def __init__(self, attributes: Callable[[], Replacer], chosen: Choices) -> None:
        self._chosen = chosen
        self._recompute = Recompute(attributes())
        self._rehearsal = Rehearsal(attributes())
        self._finder: BlockFinder | None = None
        self._blocks: list[nn.Module] = []
        self._wanted: list[nn.Module] = []  # The first blocks: the script's choices.
        self._is_rehearsing = False
        self._moves = Moves(0, 0.0)
        self.recomputed = 0  # Blocks.
        self.reasons: dict[str, int] = {}  # Why blocks are not recomputed, with their numbers.

    @property
    def blocks(self) -> int:
        """How many blocks were found."""
        return len(self._blocks)

    def open(self) -> None:
        """Begins, before an iteration's first forward pass."""
        self._finder = BlockFinder()
        self._finder.open()

    def end_iteration(self, moves: Moves, allowance_bytes: int) -> None:
        """An iteration has ended that moved as much. Blocks are rehearsed only if what both runs of
        one save fits the allowance. REQUIRES: no block runs."""
        if self._finder is not None:
            found = [block.module for block in self._finder.close()]
            self._finder = None
            self._wanted = self._chosen.blocks(found)
            others = without_overlaps(found, self._wanted)
            self._blocks = [*self._wanted, *others]
            both_runs_bytes = 2 * moves.bytes // max(1, len(self._blocks))
            opened = self._wanted
            if moves.bytes and both_runs_bytes <= allowance_bytes:
                self._moves = moves
                opened = self._blocks
            if opened:
                self._is_rehearsing = True
                self._rehearsal.open(opened)
        elif self._is_rehearsing and not self._rehearsal.is_idle:
            self._is_rehearsing = False
            rehearsed = self._rehearsal.close()
            # In the order of the calls.
            known = [(block, rehearsed[block]) for block in self._blocks if block in rehearsed]
            for _, each in known:
                if each.reason is not None:
                    self.reasons[each.reason] = self.reasons.get(each.reason, 0) + 1
            wanted = dict(known[: len(self._wanted)])
            modes = {
                **{b: mode_of(each) for b, each in wanted.items() if each.reason is None},
                **chosen(known[len(wanted) :], self._moves),
            }
            self.recomputed = len(modes)
            self._recompute.plan(modes)

    def close(self) -> None:
        """Lets all blocks run as they are."""
        if self._finder is not None:
            self._finder.close()
        if self._is_rehearsing:
            self._rehearsal.close()
        self._recompute.close()


def without_overlaps(found: Sequence[nn.Module], wanted: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks that neither lie in wanted ones nor contain any."""
    inner = {part for block in wanted for part in block.modules()}
    return [b for b in found if b not in inner and not any(p in wanted for p in b.modules())]


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
