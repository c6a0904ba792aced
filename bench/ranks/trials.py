"""The bit that each trial alters in a training of two ranks."""

from __future__ import annotations

import random

# Begins the line that altered.py writes on stderr before each trial; the number follows.
LINE = "trial"
LAYERS = 12


def flip_of(trial: int, steps: int) -> tuple[int, int, int]:
    """The step, layer and bit that a trial alters."""
    choice = random.Random(trial)
    # The first step makes states, and in it all that is read is compared by digests.
    return choice.randrange(2, steps), choice.randrange(LAYERS), choice.randrange(1 << 20)
