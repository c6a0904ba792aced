"""tools/mutants.py applies each row of its table, and tells caught mutants from others."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutants  # noqa: E402

ROW = "[less]\nfile: code.py\noriginal: return a < b\nmutated: return a <= b\ntest: //code:test\n"
CODE = "def less(a, b):\n    return a < b\n"


class Mutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "tools").mkdir()
        (self.root / "code.py").write_text(CODE)

    def run_table(self, table, *arguments, fails=None):
        """The exit status, and what is printed."""
        (self.root / mutants.TABLE).write_text(table)
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = mutants.main(
                list(arguments),
                self.root,
                lambda rows, root: mutants.try_mutants(rows, root, fails or self.fail),
            )
        return status, output.getvalue()

    def refused(self, table, reason, *arguments):
        status, output = self.run_table(table, *arguments)
        self.assertEqual(status, 2)
        self.assertIn(reason, output)

    def test_a_row_that_does_not_apply_is_an_error(self):
        self.refused(ROW.replace("a < b", "a > b"), "occurs 0 times")
        self.refused(ROW.replace("a < b", "a > b"), "occurs 0 times", "--check")
        self.refused(ROW.replace("code.py", "gone.py"), "there is no gone.py")
        (self.root / "code.py").write_text(CODE + CODE)
        self.refused(ROW, "occurs 2 times")

    def test_a_row_that_is_malformed_is_an_error(self):
        self.refused(ROW + ROW, "is there twice")
        self.refused(ROW.replace("test:", "tests:"), "is no part of a row")
        self.refused(ROW.replace("mutated: return a <= b\n", ""), "mutated is missing")
        self.refused(ROW, "has no more", "more")

    def test_a_test_that_sees_the_mutant_catches_it(self):
        def fails(test, root):
            self.assertEqual(test, "//code:test")
            return "<=" in (root / "code.py").read_text()

        status, output = self.run_table(ROW, fails=fails)
        self.assertEqual(status, 0)
        self.assertIn("caught    less", output)
        self.assertIn("1 of 1 mutants caught", output)
        self.assertEqual((self.root / "code.py").read_text(), CODE)

    def test_a_mutant_that_no_test_sees_survives(self):
        status, output = self.run_table(ROW, fails=lambda test, root: False)
        self.assertEqual(status, 1)
        self.assertIn("survived  less", output)

    def test_a_mutant_that_does_not_compile_is_not_caught(self):
        status, output = self.run_table(
            ROW, fails=lambda test, root: None if "<=" in (root / "code.py").read_text() else False
        )
        self.assertEqual(status, 1)
        self.assertIn("error     less", output)

    def test_a_test_that_fails_by_itself_catches_nothing(self):
        status, output = self.run_table(ROW, fails=lambda test, root: True)
        self.assertEqual(status, 1)
        self.assertIn("does not pass without a mutant", output)
        self.assertNotIn("caught   ", output)

    def test_what_survives_its_test_in_one_build_is_judged_by_those_of_its_package(self):
        class Programs:
            def __init__(self, *seen_by):
                self.seen_by = seen_by

            def seconds(self, test, chosen="*"):
                return None if test == "//fails:test" else 1

            def sees(self, number, test, chosen="*"):
                return (test, chosen) in self.seen_by

            def tests_in(self, query):
                return ["//fails:test", "//code:test"]

        def judge(test, *seen_by):
            mutant = mutants.Mutant("less", "code.cc", "a", "b", test)
            return mutants.judge(Programs(*seen_by), 1, mutant, "//code:all")

        own = "//code:test Less.*"
        self.assertEqual(judge(own, ("//code:test", "Less.*")), ("caught", own))
        self.assertEqual(
            judge(own, ("//code:test", "*")), ("caught", f"//code:test, but not {own}")
        )
        self.assertEqual(judge(own), ("survived", own))
        self.assertEqual(judge("//fails:test")[0], "error")


if __name__ == "__main__":
    unittest.main()
