"""What `memtide plan` has chosen for the activations of a model's repeated blocks.

A plan knows blocks by their order in forward passes. Which modules they are is known after the
first iteration, in which all activations stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from memtide._activations.choices import Choice, Choices


class PlannedChoices(Choices):
    """The choices of a plan. They name modules from the first call of `blocks` on."""

    def __init__(self, words: Sequence[str], say: Callable[[str], None]) -> None:
        """`words`: for each repeated block "keep", "move" or "recompute". `say` is called with a
        line if they are for another number of blocks than the script has."""
        super().__init__()
        self._planned = tuple(map(Choice, words))
        self._say = say

    @property
    def are_made(self) -> bool:
        """Whether anything is to leave or to be recomputed."""
        return any(choice is not Choice.KEEP for choice in self._planned)

    def blocks(self, found: Iterable[nn.Module]) -> list[nn.Module]:
        """The blocks that are to be recomputed. All stays as without a plan if it is for another
        number of blocks."""
        modules = list(found)
        if len(modules) != len(self._planned):
            self._say(
                f"the plan chooses for activations of {len(self._planned)} blocks, and the script "
                f"has {len(modules)}: they stay"
            )
            return []
        self._modules = {
            module: choice
            for module, choice in zip(modules, self._planned, strict=True)
            if choice is not Choice.KEEP
        }
        return super().blocks(modules)
