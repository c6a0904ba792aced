"""The step from which the ranks of several nodes go on, by what each of them has."""

from __future__ import annotations

import pytest
from memtide._resume.agree_across_nodes import Agreement, Offer, agreement_of, offer_of
from memtide._resume.step_manifest import SavedOptimizer, StepManifest
from memtide.errors import FailedPrecondition

NOTHING = Offer(wanted=False, own_id="new")


def has(*steps: int, group: str = "a", wanted: bool = True, lost: str = "") -> Offer:
    return Offer(wanted, group, steps, lost, "own")


@pytest.mark.parametrize(
    ("offers", "agreement"),
    [
        ([NOTHING, NOTHING], Agreement("new")),
        ([has(3, wanted=False), NOTHING], Agreement("own")),
        ([has(3), has(3), has(3), has(3)], Agreement("a", 0)),
        # A node that was lost, or is one step behind, gets what another has.
        ([NOTHING, NOTHING, has(3), has(3)], Agreement("a", 2, (0, 1))),
        ([has(3), has(3), has(2), has(2)], Agreement("a", 0, (2, 3))),
        ([has(5, 4), has(5, 5)], Agreement("a", 1, (0,))),
        # One that was started anew, and had not lost its job.
        ([has(3), has(3, wanted=False)], Agreement("a", 0)),
        ([has(3), has(4, wanted=False)], Agreement("a", 1, (0,))),
        # Another training of the same name.
        ([has(3), has(9, group="b", wanted=False)], Agreement("a", 0, (1,))),
    ],
)
def test_all_go_on_from_the_furthest_step(offers: list[Offer], agreement: Agreement) -> None:
    assert agreement_of(offers) == agreement


def test_what_cannot_be_resumed_is_said_by_all() -> None:
    with pytest.raises(FailedPrecondition, match="rank 1 cannot be resumed: Adafactor steps"):
        agreement_of([has(3), has(lost="Adafactor steps")])


def test_an_offer_is_what_a_manifest_says() -> None:
    manifest = StepManifest(
        optimizers=[SavedOptimizer("SGD", 3, []), SavedOptimizer("Adam", 2, [])], group="a"
    )
    assert offer_of(manifest, "own", wanted=True) == has(3, 2)
    assert offer_of(None, "new", wanted=True) == NOTHING
