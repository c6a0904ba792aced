"""judge() chooses the pairs that count, and compares their median with the goal."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import FIGURES, Figure, Measure, Pair, judge

SHARE = Figure("share", "a speed by a speed", Measure.SHARE, 0.95, "GB/s", at_least=True)
EXTRA = Figure("extra", "a time beyond a time", Measure.EXTRA, 30, "us", "us")
COUNT = Figure("count", "bytes", Measure.ALONE, 0, "B", "B")


def quiet(limit: float, product: float) -> Pair:
    return Pair(limit, product, 0.01)


def busy(limit: float, product: float) -> Pair:
    return Pair(limit, product, 1.2)


class JudgeTest(unittest.TestCase):
    def test_the_median_of_the_ratios_counts_not_the_ratio_of_the_medians(self) -> None:
        pairs = [quiet(1, 1), quiet(2, 2), quiet(4, 2), quiet(10, 10), quiet(20, 20)]
        self.assertEqual(judge(SHARE, pairs).value, 1)

    def test_pairs_of_a_busy_machine_do_not_count_beside_enough_quiet_ones(self) -> None:
        verdict = judge(SHARE, [quiet(1, 1)] * 5 + [busy(1, 0.1)] * 7)
        self.assertEqual(verdict.value, 1)
        self.assertFalse(verdict.noisy)
        self.assertEqual(len(verdict.pairs), 12)

    def test_too_few_quiet_pairs_make_all_count_and_the_verdict_noisy(self) -> None:
        verdict = judge(SHARE, [quiet(1, 1)] * 4 + [busy(1, 0.5)] * 7)
        self.assertEqual(verdict.value, 0.5)
        self.assertTrue(verdict.noisy)

    def test_a_goal_is_met_at_its_exact_value_and_missed_beyond_it(self) -> None:
        self.assertTrue(judge(SHARE, [quiet(1, 0.95)] * 5).met)
        self.assertFalse(judge(SHARE, [quiet(1, 0.94)] * 5).met)
        self.assertTrue(judge(EXTRA, [quiet(100, 130)] * 5).met)
        self.assertFalse(judge(EXTRA, [quiet(100, 131)] * 5).met)

    def test_one_quiet_sample_of_a_count_is_enough(self) -> None:
        verdict = judge(COUNT, [quiet(0, 0)])
        self.assertTrue(verdict.met)
        self.assertFalse(verdict.noisy)

    def test_a_batch_is_judged_by_how_many_times_faster_it_is(self) -> None:
        batch = next(figure for figure in FIGURES if figure.name == "rpc.batch_fetch")
        self.assertEqual(judge(batch, [quiet(limit=160, product=20)] * 5).value, 8)

    def test_names_are_unique(self) -> None:
        names = [figure.name for figure in FIGURES]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
