#!/usr/bin/env python3
"""tools/affected_tests.py finds the tests of changed files in a small tree."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from affected_tests import bazel_query, pytest_paths  # noqa: E402

TREE = {
    "BUILD": "",
    "VERSION": "1.2.3",
    "README.md": "",
    "client/BUILD": "",
    "client/abi/c_abi.cc": "",
    "deploy/BUILD": "",
    "pyclient/memtide/api.py": "",
    "pyclient/memtide/_trace/model.py": "",
    "pyclient/memtide/_plot/memory_plot.py": "",
    "tests/python/harness.py": "",
    "tests/python/trace/conftest.py": "",
    "tests/python/trace/test_model.py": "from memtide._trace import model",
    "tests/python/test_api.py": "import harness\nfrom memtide import api, errors",
    "tests/python/test_plot.py": "from memtide._plot.memory_plot import draw",
}


class AffectedTests(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        for name, text in TREE.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def pytest(self, *changed):
        return pytest_paths(changed, self.root)

    def bazel(self, *changed):
        return bazel_query(changed, self.root)

    def test_a_file_belongs_to_the_nearest_package(self):
        self.assertIn("set(//client:abi/c_abi.cc)", self.bazel("client/abi/c_abi.cc"))
        self.assertIn("set(//:README.md)", self.bazel("README.md"))

    def test_a_build_file_affects_its_whole_package(self):
        self.assertIn("set(//client:all)", self.bazel("client/BUILD"))
        self.assertIn("set(//:all)", self.bazel("BUILD"))

    def test_packages_are_tested_when_what_packs_them_changed(self):
        self.assertIn("except //deploy/...", self.bazel("client/abi/c_abi.cc"))
        self.assertNotIn("except //deploy/...", self.bazel("client/abi/c_abi.cc", "deploy/BUILD"))
        self.assertNotIn("except //deploy/...", self.bazel("VERSION"))

    def test_a_file_that_is_gone_is_no_label(self):
        self.assertEqual(self.bazel("client/gone.cc"), "")
        self.assertNotIn("gone", self.bazel("client/gone.cc", "client/BUILD"))

    def test_a_module_affects_the_folder_of_its_package(self):
        for module in ("model", "folder/of_it"):
            path = f"pyclient/memtide/_trace/{module}.py"
            self.assertEqual(self.pytest(path), ["tests/python/trace"])

    def test_a_module_without_a_folder_affects_the_tests_that_name_it(self):
        self.assertEqual(self.pytest("pyclient/memtide_plan/a/b.py"), ["tests/python/plan"])
        self.assertEqual(self.pytest("pyclient/memtide_methods/trace/b.py"), ["tests/python/trace"])
        self.assertEqual(self.pytest("pyclient/memtide/api.py"), ["tests/python/test_api.py"])
        plot = self.pytest("pyclient/memtide/_plot/memory_plot.py")
        self.assertEqual(plot, ["tests/python/test_plot.py"])

    def test_a_helper_affects_the_tests_that_name_it(self):
        self.assertEqual(self.pytest("tests/python/harness.py"), ["tests/python/test_api.py"])

    def test_a_file_in_an_affected_folder_is_not_named_again(self):
        both = self.pytest("tests/python/trace/conftest.py", "tests/python/trace/test_model.py")
        self.assertEqual(both, ["tests/python/trace"])

    def test_what_nothing_depends_on_affects_nothing(self):
        self.assertEqual(self.pytest("README.md", "tests/python/test_gone.py"), [])
        self.assertEqual(self.pytest(), [])
        self.assertEqual(self.bazel(), "")


if __name__ == "__main__":
    unittest.main()
