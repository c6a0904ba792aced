"""Tests of structure.py and fetch_cost.py: figures of small texts."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fetch_cost  # noqa: E402
import structure as figures  # noqa: E402
from tidy import structure  # noqa: E402

HEADER = """// A: about this.
class A final : public Base {
 public:
  explicit A(int x) : x_(x) {}
  ~A() override;
  // A comment; with (parentheses).
  [[nodiscard]] const std::map<int, std::function<void(int)>>& found() const { return found_; }
  template <typename T>
  void Emit(T effect) {
    effects_.push_back(std::move(effect));
  }
  struct Inner {
    int Count();
  };

 private:
  static_assert(sizeof(int) == 4);
  std::function<void(int)> then_ = [](int x) { Call(x); };
  int x_ = Now(), y_{0};
};
"""

SOURCE = """#include "a.h"
namespace {
int Half(int x) { return x / 2; }
}  // namespace

std::vector<int> A::Some(const Job& job,
                         int x) const {
  if (x > 0) {
    return {Half(x)};  // No end: }
  }
  return {};
}
"""

PYTHON = '''"""About this.

More about it.
"""

import os  # A comment.

# Another one.
class Job:
    """A job."""

    def fits(self, size):
        """Whether it fits."""
        text = """
a literal
"""
        return size < len(text)
'''


class Structure(unittest.TestCase):
    def test_methods_are_declarations_with_parameters(self):
        self.assertEqual(structure.classes("a.h", HEADER), [("A", 2, 4), ("Inner", 12, 1)])
        self.assertEqual(structure.classes("a.py", PYTHON), [("Job", 9, 1)])

    def test_functions_have_the_lines_from_head_to_end(self):
        self.assertEqual(structure.functions("a.cc", SOURCE), [("Half", 3, 1), ("A::Some", 6, 7)])
        self.assertEqual(structure.functions("a.py", PYTHON), [("fits", 12, 5)])

    def test_code_has_no_blank_lines_comments_and_docstrings(self):
        self.assertEqual(structure.code_lines("a.py", PYTHON), 7)
        self.assertEqual(structure.code_lines("a.cc", SOURCE), 11)
        self.assertEqual(structure.code_lines("run", "#!/bin/bash\n\n# Comment.\nx=1\n"), 1)
        self.assertEqual(structure.code_lines("run", "#!/usr/bin/env python3\n" + PYTHON), 7)

    def test_files_that_call_each_other_are_a_circle(self):
        texts = {
            "a.cc": "void A() {\n  B();\n}\n",
            "b.cc": "void B() {\n  C();\n  D();\n}\n",
            "c.cc": "void C() {\n  A();\n}\n",
            "d.cc": "void D() {\n  // A();\n}\n",
        }
        self.assertEqual(structure.circle(texts), ["a.cc", "b.cc", "c.cc"])

    def test_a_call_stands_where_its_messages_event_or_functions_are_named(self):
        texts = {
            "a.h": "struct DiscardCall {};\n",
            "b.h": "int memtide_discard(int places);\n",
            "c.cc": "absl::Status Client::Discard(absl::Span<const Id> places);\n",
            "d.cc": "memory_.Discard(index);\n",
            "daemon/replay/a.cc": "DiscardCall call;\n",
        }
        self.assertEqual(figures.files_of_call(texts, "Discard"), ["a.h", "b.h", "c.cc"])

    def test_programs_are_no_tests_fakes_or_documents(self):
        programs = ["base/a.h", "deploy/x.py", "proto/a.proto"]
        others = ["base/a_test.cc", "tests/a.py", "base/cuda/fake/a.cc", "docs/a.md", "a/BUILD"]
        self.assertEqual(
            [each for each in programs + others if figures.is_program(each, "")], programs
        )
        self.assertTrue(figures.is_program("tools/demo", "#!/bin/bash\n"))

    def test_sentences_that_open_with_what_are_counted(self):
        text = "// What a chunk holds. A chunk is lent; what it holds is not.\n\n// Those of it.\n"
        self.assertEqual(figures.openings({"a.cc": text}), (2, 3))


class FetchCost(unittest.TestCase):
    def test_what_a_source_calls_is_not_its_own_cost(self):
        report = "fl=(1) a.cc\nfn=(1) A\n3 10\n+1 5\ncfi=(2) b.cc\ncfn=(2) B\ncalls=1 7\n4 100\n"
        report += "fe=(2)\n7 100\nfi=(1)\n* 2\n"
        self.assertEqual(fetch_cost.instructions(report)[0], {"a.cc": 17, "b.cc": 100})
        own, of_calls = fetch_cost.instructions(report, fetch_cost.FUNCTIONS)
        self.assertEqual((own, of_calls), ({"A": 117}, {"B": 100}))


if __name__ == "__main__":
    unittest.main()
