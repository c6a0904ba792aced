"""The one model of `memtide plan`: what a step takes on a machine, and whether it fits.

estimate() is all that others use. It makes times and bytes of a model's blocks (work.py), shares
out the machine's memory (pools.py), and asks the planner in C++, which plays the iteration with
the daemon's own engine (question.py, ask_replay.py), or, for systems that work in another way
(system_strategies.py), adds up what each of their phases takes (phases.py).
"""

from memtide_plan.estimate.estimates import estimate, estimate_all

__all__ = ["estimate", "estimate_all"]
