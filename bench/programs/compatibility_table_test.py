"""The table of docs/compatibility.md: its words about losses, and the rows that it joins."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compatibility_table import Row, apart_by, are_close, compared, table, write


def row(name: str, losses: str = "7 equal", plain_s: float = 0.1, *, folds: bool = True) -> Row:
    return Row(name, "4.1", plain_s, 0.4, losses, "outside code", True, may_fold=folds)


class TableTest(unittest.TestCase):
    def test_a_difference_in_the_last_digit_is_not_equal_but_passes_within_1e_5(self):
        self.assertEqual(compared(["2.5", "2"], ["2.5", "2"], [], ""), "2 equal")
        near, far = ["2.5", "2.00001"], ["2.5", "2.0001"]
        self.assertEqual(compared(["2.5", "2"], near, ["2.5", "2"], ""), "4.0e-06 apart")
        self.assertTrue(are_close(["2.5", "2"], near))
        self.assertFalse(are_close(["2.5", "2"], far))

    def test_plain_runs_that_differ_among_themselves_are_named(self):
        text = compared(["2.0"], ["2.02"], ["2.01"], "")
        self.assertEqual(text, "1.0e-02 apart; plain runs 5.0e-03")

    def test_losses_about_zero_are_compared_with_the_largest(self):
        self.assertAlmostEqual(apart_by(["0.0", "1e-3"], ["1e-9", "1e-3"]), 1e-6)

    def test_a_run_that_ends_early_does_not_pass_and_says_why(self):
        self.assertFalse(are_close(["2.5", "2.0"], ["2.5"]))
        text = compared(["2.5", "2.0"], ["2.5"], [], "exit status 1: no room")
        self.assertEqual(text, "1 of 2: exit status 1: no room")

    def test_equal_rows_of_a_library_are_one_and_others_stay(self):
        rows = [row("po soap", folds=False), row("po a"), row("po b", plain_s=0.2), row("timm a")]
        text = table([*rows, row("po c", "1.0e-07 apart")], [("po demo", "many processes")])
        names = [line.split(" | ")[0] for line in text.splitlines()]
        others = "| po, 2 others (times: the row of the median ratio)"
        self.assertEqual(names[2:5], ["| po soap", "| po c", others])
        self.assertTrue(names[5].startswith("| timm, 1 others"))
        self.assertEqual(text.splitlines()[-1], "| po demo | many processes |")

    def test_a_table_is_written_between_its_markers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.md"
            path.write_text("A\n<!-- table: begin -->\nold\n<!-- table: end -->\nB\n")
            write(path, "new")
            expected = "A\n<!-- table: begin -->\nnew\n<!-- table: end -->\nB\n"
            self.assertEqual(path.read_text(), expected)


if __name__ == "__main__":
    unittest.main()
