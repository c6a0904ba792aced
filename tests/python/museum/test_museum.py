"""Bugs of others: under memtide their scripts train as under plain torch, to the bit.

Tests show that each case sees the bug for which it was built: with a fault of that kind in memtide,
it fails. README.md says whose bug each one is.
"""

from __future__ import annotations

import activation_cases
import gradient_cases
import memory_cases
import optimizer_cases
import parameter_cases
import pytest
import recomputation_cases
from museum import Case, plain, same, under_memtide

CASES = [
    *parameter_cases.CASES,
    *memory_cases.CASES,
    *gradient_cases.CASES,
    *optimizer_cases.CASES,
    *activation_cases.CASES,
    *recomputation_cases.CASES,
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_trains_as_plain_torch(case: Case) -> None:
    results, run = under_memtide(case)
    assert same(results, plain(case))
    activations = run.runtime.activations
    assert run.runtime.offloaded.parts.steps and activations.moved_bytes
    assert bool(activations.planning.recomputed) == (case.blocks and not case.alone)
    assert not case.blocks or list(activations.planning.reasons) == [case.alone] * bool(case.alone)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_planted_fault_is_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(case)
    case.plant(monkeypatch)
    if case.error:
        with pytest.raises(RuntimeError, match=case.error):
            under_memtide(case)
    else:
        assert not same(under_memtide(case)[0], expected)
