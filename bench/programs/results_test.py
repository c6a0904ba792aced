"""A program passes only within its budget, and with the losses that plain torch prints."""

import sys
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import Result, verdict

MIB = 2**20
PASSES = Result(
    "gpt",
    "language",
    plain_peak_bytes=2300 * MIB,
    budget_bytes=800 * MIB,
    measured_bytes=800 * MIB,
    most_used_bytes=790 * MIB,
    plain_losses=["2.5", "2.0"],
    losses=["2.5", "2.0"],
)


class VerdictTest(unittest.TestCase):
    def test_a_run_within_its_budget_with_plain_torch_s_losses_passes(self):
        self.assertEqual(verdict(PASSES), "")
        self.assertEqual(PASSES.losses_compared(), "2 equal")

    def test_a_loss_that_differs_in_its_last_digit_is_named_with_its_difference(self):
        other = replace(PASSES, losses=["2.5", "2.0002"])
        self.assertEqual(verdict(other), "losses: 1.0e-04 apart")

    def test_a_loss_may_differ_as_plain_runs_do_and_no_more(self):
        other = replace(PASSES, losses=["2.5", "2.0002"], plain_apart=5.1e-5)
        self.assertEqual(verdict(other), "")
        self.assertEqual(other.losses_compared(), "1.0e-04 apart, plain runs 5.1e-05")
        nearer = replace(other, plain_apart=4.9e-5)
        self.assertEqual(verdict(nearer), "losses: 1.0e-04 apart, plain runs 4.9e-05")

    def test_a_run_that_ends_early_or_prints_no_losses_does_not_pass(self):
        self.assertEqual(verdict(replace(PASSES, losses=["2.5"])), "losses: 1 instead of 2")
        self.assertEqual(verdict(replace(PASSES, losses=[])), "losses: none found under memtide")
        none = replace(PASSES, plain_losses=[], losses=[])
        self.assertEqual(verdict(none), "plain: no losses found")

    def test_neither_count_of_the_memory_may_exceed_the_budget(self):
        for measured_mib, own_mib in ((801, 790), (790, 801)):
            over = replace(PASSES, measured_bytes=measured_mib * MIB, most_used_bytes=own_mib * MIB)
            self.assertEqual(verdict(over), "the budget was 800 MiB, and 801 were used")


if __name__ == "__main__":
    unittest.main()
