"""tools/mutate.py and tools/mutants.py find what can be broken, and judge what tests say of it."""

import contextlib
import io
import os
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutate  # noqa: E402
import mutate_python  # noqa: E402
import mutations  # noqa: E402
import one_build  # noqa: E402
import python_mutations  # noqa: E402
import row_choices  # noqa: E402

CODE = """#include "a.h"
namespace memtide {
bool Fits(const Job& job, int size) {
  MEMTIDE_CHECK(size > 0) << "no size";
  const int more = size + job.used;  // a < b
  if (job.ended && more <= job.limit) {
    job.Count(more);
    return true;
  }
  for (int i = 0; i < size; ++i) job.text = "x == y";
  if (const Job* other = Find(job)) return other == &job;
  MEMTIDE_ASSIGN_OR_RETURN(const int left, Left(job));
  MEMTIDE_ASSIGN_OR_RETURN(size, Left(job));
  return false;
}
}  // namespace memtide
"""

PYTHON = '''"""About this."""
from __future__ import annotations
import os

LIMIT = 1 + 1


class Job:
    def fits(self, size: int, name: str = "x" + os.sep) -> bool:
        assert size > 0
        if size < self.limit and not self.ended:  # é
            self.count(size)
            return True
        more = size - 1
        return more
'''


class Mutations(unittest.TestCase):
    def setUp(self):
        self.found = {str(each): each for each in mutations.mutations("a.cc", CODE)}

    def test_conditions_operands_comparisons_sums_statements_and_results_are_mutated(self):
        self.assertEqual(
            set(self.found),
            {
                "a.cc:5: + to -: size + job.used",
                "a.cc:6: negate: job.ended && more <= job.limit",
                "a.cc:6: drop: job.ended",
                "a.cc:6: drop: more <= job.limit",
                "a.cc:6: <= to <: more <= job.limit",
                "a.cc:7: delete: job.Count(more);",
                "a.cc:8: flip: true",
                "a.cc:10: < to <=: i < size",
                "a.cc:11: == to !=: other == &job",
                "a.cc:13: delete: MEMTIDE_ASSIGN_OR_RETURN(size, Left(job));",
                "a.cc:14: flip: false",
            },
        )

    def test_a_number_chooses_and_no_line_moves(self):
        chosen = [
            (1, self.found["a.cc:6: <= to <: more <= job.limit"]),
            (2, self.found["a.cc:7: delete: job.Count(more);"]),
        ]
        mutated = mutations.apply(CODE, chosen)
        self.assertEqual(mutated.count("\n"), CODE.count("\n"))
        self.assertIn("((g_mutant == 1) ? (more) < (job.limit) : (more) <= (job.limit))", mutated)
        self.assertIn("if (!(g_mutant == 2)) { job.Count(more); }", mutated)
        self.assertEqual(mutated.count(mutations.PRELUDE), 1)

    def test_chosen_mutations_do_not_overlap(self):
        chosen: list[mutations.Mutation] = []
        one_build.take(sorted(self.found.values(), key=str), chosen, 100)
        self.assertEqual(len({each.line for each in chosen}), 8)
        for one in chosen:
            self.assertFalse(any(mutations.overlap(one, o) for o in chosen if o is not one))

    def test_what_does_not_compile_is_replaced_and_others_keep_their_numbers(self):
        every = sorted(self.found.values(), key=lambda each: each.begin)
        apart = [each for each in every if not each.original.startswith("job.ended")]
        chosen, pool = apart[:4], [apart[-1]]
        one_build.leave_out([apart[0], apart[1]], pool, chosen)
        self.assertEqual(chosen, [apart[3], apart[-1], apart[2]])
        self.assertEqual(pool, [])


class Rows(unittest.TestCase):
    def chosen(self, original, mutated):
        choice = row_choices.choice("a.cc", CODE, original, mutated)
        return None if choice is None else choice.mutated.format(on="g")

    def test_an_if_chooses_between_statements(self):
        self.assertEqual(
            self.chosen("job.Count(more);", "(void)more;"),
            "if (g) { (void)more; } else { job.Count(more); }",
        )

    def test_an_operator_chooses_between_expressions(self):
        self.assertEqual(
            self.chosen("if (job.ended && more <= job.limit) {", "if (job.ended) {"),
            "if (((g) ? bool(job.ended) : bool(job.ended && more <= job.limit))) {",
        )
        self.assertEqual(
            self.chosen("const int more = size + job.used;  // a < b", "const int more = size;"),
            "const int more = ((g) ? (size) : (size + job.used));",
        )

    def test_a_declaration_has_no_choice(self):
        self.assertIsNone(self.chosen("bool Fits(const Job& job, int size) {", "bool Fits() {"))
        self.assertIsNone(self.chosen("const int more = size + job.used;  // a < b", ";"))


class Python(unittest.TestCase):
    def setUp(self):
        self.found = {str(each): each for each in python_mutations.mutations("a.py", PYTHON)}

    def test_conditions_operands_comparisons_sums_statements_and_results_are_mutated(self):
        self.assertEqual(
            set(self.found),
            {
                "a.py:5: + to -: 1 + 1",
                "a.py:11: negate: size < self.limit and not self.ended",
                "a.py:11: drop: size < self.limit",
                "a.py:11: drop: not self.ended",
                "a.py:11: < to <=: size < self.limit",
                "a.py:12: delete: self.count(size)",
                "a.py:13: flip: True",
                "a.py:14: - to +: size - 1",
            },
        )

    def run_chosen(self, number, **environment):
        """Sizes that a job counts, below its limit and at it, in the text with two mutants."""
        names = "a.py:11: < to <=: size < self.limit", "a.py:12: delete: self.count(size)"
        text = python_mutations.apply(PYTHON, list(enumerate(map(self.found.get, names), 1)))
        chosen, module = types.ModuleType("chosen_mutant"), types.ModuleType("a")
        environment |= {python_mutations.CHOSEN: str(number)}
        with (
            unittest.mock.patch.dict(os.environ, environment),
            unittest.mock.patch.dict(sys.modules, chosen_mutant=chosen),
        ):
            exec(python_mutations.DEFINITION, chosen.__dict__)
            exec(text, module.__dict__)
            job, counted = module.Job(), []
            job.limit, job.ended, job.count = 3, False, counted.append
            job.fits(2)
            job.fits(3)
        return counted

    def test_a_number_chooses_a_mutant(self):
        self.assertEqual([self.run_chosen(n) for n in range(3)], [[2], [2, 3], []])

    def test_the_tests_that_run_its_line_are_recorded(self):
        with tempfile.NamedTemporaryFile("r") as ran:
            recording = {python_mutations.RECORD: ran.name}
            self.run_chosen(0, **recording)
            self.run_chosen(0, **recording, PYTEST_CURRENT_TEST="t.py::t[a b] (call)")
            expected = "1 t.py::t[a b] (call)\n2 t.py::t[a b] (call)\n"
            self.assertEqual(ran.read(), expected)

    def test_the_cheapest_tests_of_its_line_judge_a_mutant(self):
        seconds = {"t.py::a": 50.0, "t.py::b": 20.0, "t.py::c": 5.0}
        ran = "1 t.py::a (call)\n2 t.py::c (setup)\n1 t.py::b (call)\n1 t.py::fails (call)\n"
        tests = mutate_python.tests_of(ran, seconds)
        self.assertEqual(tests, {1: ["t.py::b", "t.py::a"], 2: ["t.py::c"]})
        self.assertEqual(mutate_python.judges(tests[1], seconds), (["t.py::b"], 20.0))
        self.assertEqual(mutate_python.judges(tests[2], seconds), (["t.py::c"], 5.0))
        self.assertEqual(mutate_python.judges([], seconds), ([], 0))

    def test_what_fails_or_is_skipped_judges_nothing(self):
        case = '<testcase classname="tests.a" name="{}" time="{}">{}</testcase>'
        cases = [case.format("b", 1, ""), case.format("c", 2, "<failure/>")]
        cases.append(case.format("d", 3, "<skipped/>"))
        junit = f"<testsuite>{''.join(cases)}</testsuite>"
        self.assertEqual(mutate_python.seconds_of(junit), {"tests/a.py::b": 1.0})


class Report(unittest.TestCase):
    def judge(self, caught, explained):
        every = list(mutations.mutations("a.cc", CODE))[:10]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            enough = mutate.report(
                every, lambda n: "//a:test" if n <= caught else "", explained(every), workers=1
            )
        return enough, output.getvalue()

    def test_survivors_are_named_and_make_it_fail(self):
        enough, output = self.judge(9, lambda every: {})
        self.assertFalse(enough)
        self.assertIn("9 of 10 caught, 0 are equivalent, 1 survived", output)
        self.assertIn("SURVIVED", output)

    def test_it_goes_on_where_a_run_was_broken_off(self):
        every = list(mutations.mutations("a.cc", CODE))[:10]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.assertTrue(mutate.report(every, lambda n: "//a:test", {}, workers=1, after=7))
        self.assertIn("3 of 3 caught", output.getvalue())
        self.assertIn(f"   8 {every[7]}: caught", output.getvalue())

    def test_what_is_explained_does_not_count(self):
        enough, output = self.judge(9, lambda every: {mutate.key(every[9]): "it is the same"})
        self.assertTrue(enough)
        self.assertIn("9 of 9 caught, 1 are equivalent, 0 survived", output)
        self.assertIn("it is the same", output)


if __name__ == "__main__":
    unittest.main()
