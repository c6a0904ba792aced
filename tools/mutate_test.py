"""tools/mutations.py finds what can be broken, and tools/mutate.py judges what tests say of it."""

import contextlib
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutate  # noqa: E402
import mutations  # noqa: E402

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
  return false;
}
}  // namespace memtide
"""


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
                "a.cc:12: flip: false",
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
        mutate.take(sorted(self.found.values(), key=str), chosen, 100)
        self.assertEqual(len({each.line for each in chosen}), 7)
        for one in chosen:
            self.assertFalse(any(mutations.overlap(one, o) for o in chosen if o is not one))


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

    def test_what_is_explained_does_not_count(self):
        enough, output = self.judge(9, lambda every: {mutate.key(every[9]): "it is the same"})
        self.assertTrue(enough)
        self.assertIn("9 of 9 caught, 1 are equivalent, 0 survived", output)
        self.assertIn("it is the same", output)


if __name__ == "__main__":
    unittest.main()
