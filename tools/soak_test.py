"""tools/soak.py goes on until something breaks, and says how to see it again."""

import contextlib
import io
import random
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import soak  # noqa: E402


class Soak(unittest.TestCase):
    def run_once(self, status, output):
        """A Soak after simulations and kills, what it has called, and what it printed."""
        calls = []

        def bazel(root, script, *arguments):
            calls.append(arguments)
            return status, output

        tried = soak.Soak(random.Random(1), 5_000_000, time.monotonic() + 60)
        printed = io.StringIO()
        with mock.patch.object(soak, "bazel", bazel), contextlib.redirect_stdout(printed):
            tried.simulate()
            tried.kill()
        return tried, calls, printed.getvalue()

    def test_each_simulation_has_seeds_of_its_own_and_each_kill_test_options(self):
        tried, calls, _ = self.run_once(0, "")
        first = [arguments[0] for arguments in calls[:4]]
        self.assertEqual(first, [f"--test_env=MEMTIDE_SIM_FIRST=500{n}000" for n in range(4)])
        self.assertTrue(all("MEMTIDE_KILL_SEED=" in arguments[0] for arguments in calls[4:]))
        self.assertEqual(tried.counts["seeds of //tests/sim:rank_test"], soak.SEEDS_A_RUN)
        self.assertTrue(tried.goes_on)

    def test_what_breaks_ends_it_with_its_seed(self):
        for output in ("seed 5000017\n", "Google Test trace:\na.cc:42: seed 5000017\n"):
            tried, calls, printed = self.run_once(3, "a promise is broken\n" + output)
            self.assertEqual(len(calls), 1)
            self.assertFalse(tried.goes_on)
            self.assertIn("a promise is broken", printed)
            again = "--test_env=MEMTIDE_SIM_FIRST=5000017 --test_env=MEMTIDE_SIM_SEEDS=1"
            self.assertIn(f"bazel test -c opt {again} //tests/sim:sim_test", printed)


if __name__ == "__main__":
    unittest.main()
