"""tools/mutate.py and tools/mutants.py find what can be broken, and judge what tests say of it."""

import contextlib
import io
import sys
import unittest
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
                "a.py:4: + to -: 1 + 1",
                "a.py:10: negate: size < self.limit and not self.ended",
                "a.py:10: drop: size < self.limit",
                "a.py:10: drop: not self.ended",
                "a.py:10: < to <=: size < self.limit",
                "a.py:11: delete: self.count(size)",
                "a.py:12: flip: True",
                "a.py:13: - to +: size - 1",
            },
        )

    def test_a_mutant_is_the_text_with_one_change(self):
        mutated = python_mutations.apply(PYTHON, self.found["a.py:10: drop: not self.ended"])
        self.assertIn("        if ((size < self.limit)):  # é\n", mutated)
        mutated = python_mutations.apply(PYTHON, self.found["a.py:11: delete: self.count(size)"])
        self.assertIn("            pass\n", mutated)

    def judges(self, name):
        lines = {4: set(), 10: {"a", "b"}, 11: {"b", "c", "fails"}}
        recorded = {"seconds": {"a": 50.0, "b": 20.0, "c": 5.0}, "lines": {"a.py": lines}}
        return mutate_python.judges(self.found[name], PYTHON, recorded)

    def test_the_cheapest_tests_of_its_line_judge_a_mutant(self):
        self.assertEqual(self.judges("a.py:10: drop: not self.ended"), (["b"], 20.0))
        self.assertEqual(self.judges("a.py:11: delete: self.count(size)"), (["c", "b"], 25.0))
        self.assertEqual(self.judges("a.py:12: flip: True"), ([], 0))

    def test_what_runs_at_an_import_is_judged_by_the_tests_of_its_file(self):
        self.assertEqual(self.judges("a.py:4: + to -: 1 + 1"), (["c", "b"], 25.0))


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
