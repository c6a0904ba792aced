"""The choices that an answer of `memtide plan` makes for activations of repeated blocks.

The answer knows blocks by their order in forward passes. Which modules they are is known after the
first iteration, in which all activations stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from memtide._activations.script_choices import Choice, Choices


class ChoicesByBlock(Choices):
    """The choices of one answer. They name modules from the first call of `blocks` on."""

    def __init__(self, words: Sequence[str], say: Callable[[str], None]) -> None:
        """`words`: for each repeated block "keep", "move" or "recompute". `say` is called with a
        line if they are for another number of blocks than the script has."""
        super().__init__()
        self._in_order = tuple(map(Choice, words))
        self._say = say

    @property
    def are_made(self) -> bool:
        """Whether anything is to leave or to be recomputed."""
        return any(choice is not Choice.KEEP for choice in self._in_order)

    def blocks(self, found: Iterable[nn.Module]) -> list[nn.Module]:
        """The blocks that are to be recomputed. All stays if the choices are for another number
        of blocks."""
        modules = list(found)
        if len(modules) != len(self._in_order):
            self._say(
                f"the plan chooses for activations of {len(self._in_order)} blocks, and the script "
                f"has {len(modules)}: they stay"
            )
            return []
        self._modules = {
            module: choice
            for module, choice in zip(modules, self._in_order, strict=True)
            if choice is not Choice.KEEP
        }
        return super().blocks(modules)
