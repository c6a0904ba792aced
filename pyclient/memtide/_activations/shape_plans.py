"""Plans by the shapes of the iterations that they were made for.

An iteration's signature is what its blocks were given: the shapes and types of the tensors of each
call, in the order of the calls. The first of them is known when a forward pass comes to its first
block, early enough to change the plan. Only the plans used latest are remembered.

Shapes without a plan are worth an iteration in which nothing is recomputed, for a profile, if they
come a second time. A script whose shapes never come again keeps the plan that it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from memtide._activations.plan import ActivationPlan

Signature = tuple[Hashable, ...]
_MOST = 8


class ShapePlans:
    """The plans of one process."""

    def __init__(self, most: int = _MOST) -> None:
        """At most this many plans are remembered, and as many signatures without one."""
        self._most = most
        self._plans: OrderedDict[Signature, ActivationPlan] = OrderedDict()  # Latest last.
        self._unplanned: OrderedDict[Signature, int] = OrderedDict()  # How often they came.

    def plan_of(self, signature: Signature) -> ActivationPlan | None:
        """The plan that was made for exactly this."""
        plan = self._plans.get(signature)
        if plan is not None:
            self._plans.move_to_end(signature)
        return plan

    def plan_beginning(self, first: Hashable) -> ActivationPlan | None:
        """The plan used latest of iterations whose first block is given this."""
        for signature in reversed(self._plans):
            if signature[:1] == (first,):
                return self.plan_of(signature)
        return None

    def remember(self, signature: Signature, plan: ActivationPlan) -> None:
        """Stores a plan."""
        self._plans[signature] = plan
        self._unplanned.pop(signature, None)
        self.plan_of(signature)
        while len(self._plans) > self._most:
            self._plans.popitem(last=False)

    def miss(self, signature: Signature) -> None:
        """An iteration has ended that has no plan, and of which no profile can be made."""
        self._unplanned[signature] = self._unplanned.pop(signature, 0) + 1
        while len(self._unplanned) > self._most:
            self._unplanned.popitem(last=False)

    def wants_profile(self, first: Hashable) -> bool:
        """Whether an iteration that begins like this is worth a profile: some have missed a plan.
        True once for each signature, as it may be another iteration that begins in the same way."""
        for signature, times in self._unplanned.items():
            if times == 1 and signature[:1] == (first,):
                self._unplanned[signature] += 1
                return True
        return False
