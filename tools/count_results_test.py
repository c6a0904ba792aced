"""tools/count_results.py counts every passed and failed test once."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import count_results  # noqa: E402


def configured(label):
    return {"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": "SMALL"}}


def summary(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


def timed(label, milliseconds):
    return {
        "id": {"testSummary": {"label": label}},
        "testSummary": {"totalRunDurationMillis": str(milliseconds)},
    }


def skipped(label):
    return {"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": "SKIPPED"}}


def lines(*events):
    return [json.dumps(event) for event in events]


class BazelResults(unittest.TestCase):
    def test_a_passing_and_a_failing_test(self):
        events = lines(
            configured("//a"), configured("//b"), summary("//a", "PASSED"), summary("//b", "FAILED")
        )
        self.assertEqual(count_results.bazel_results(events), (1, ["//b"]))

    def test_a_test_that_was_never_built_is_a_failure(self):
        self.assertEqual(count_results.bazel_results(lines(configured("//a"))), (0, ["//a"]))

    def test_an_incompatible_test_is_neither(self):
        events = lines(configured("//a"), skipped("//a"))
        self.assertEqual(count_results.bazel_results(events), (0, []))

    def test_a_library_is_not_a_test(self):
        events = lines({"id": {"targetConfigured": {"label": "//lib"}}, "configured": {}})
        self.assertEqual(count_results.bazel_results(events), (0, []))


class StageResults(unittest.TestCase):
    def stage(self, **files):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, text in files.items():
            (folder / ("s." + name.replace("_", "."))).write_text(text)
        return count_results.stage_results(folder / "s.status")

    def test_pytest_skips_and_errors(self):
        outcomes = ["", "<failure/>", "<error/>", "<skipped/>", ""]
        cases = "".join(
            f'<testcase classname="t" name="{n}">{outcome}</testcase>'
            for n, outcome in enumerate(outcomes)
        )
        xml = f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
        self.assertEqual(self.stage(status="1\n", junit_xml=xml), (2, ["t::1", "t::2"]))

    def test_a_stage_that_fails_without_tests_is_one_failure(self):
        self.assertEqual(self.stage(status="2\n"), (0, ["stage s"]))

    def test_a_stage_whose_tests_pass_but_which_fails_is_one_failure(self):
        events = "\n".join(lines(configured("//a"), summary("//a", "PASSED")))
        self.assertEqual(self.stage(status="1\n", bep_json=events), (1, ["stage s"]))


class Prices(unittest.TestCase):
    def test_the_seconds_of_folders_of_both_kinds_the_dearest_first(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        times = {"tests.python.a.test_x": 2, "tests.python.a.test_y.TestOfAClass": 3}
        cases = "".join(
            f'<testcase classname="{name}" name="t" time="{took}"/>' for name, took in times.items()
        )
        (folder / "python.status").write_text("0\n")
        (folder / "python.junit.xml").write_text(f"<testsuites>{cases}</testsuites>")
        (folder / "opt.status").write_text("0\n")
        (folder / "opt.bep.json").write_text("\n".join(lines(timed("//b/c:d_test", 4000))))
        found = list(count_results.prices(folder))
        self.assertEqual(found[1], "    5.0 s     2 tests  python: tests/python/a")
        self.assertEqual(found[2], "    4.0 s     1 tests  opt: //b/c")
        self.assertEqual(found[4], "    4.0 s  opt: //b/c:d_test")


class StageSeconds(unittest.TestCase):
    def test_the_times_of_both_kinds_of_tests(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "s.bep.json").write_text("\n".join(lines(configured("//a"), timed("//a", 1500))))
        case = '<testsuites><testcase classname="t" name="n" time="0.25"/></testsuites>'
        (folder / "s.junit.xml").write_text(case)
        seconds = list(count_results.stage_seconds(folder / "s.status"))
        self.assertEqual(seconds, [(1.5, "//a"), (0.25, "t::n")])


class Table(unittest.TestCase):
    def test_each_stage_has_its_minutes_beside_its_budget_and_all_have_their_sum(self):
        stages = {"opt": (140, []), "cuda-header": (0, ["stage cuda-header"])}
        self.assertEqual(
            [
                line.split()
                for line in count_results.table(stages, {"opt": 61, "cuda-header": 9}, {"opt": 0.5})
            ],
            [
                ["opt", "140", "passed", "0", "failed", "1.0", "min", "of", "0.5", "<-", "over"],
                ["cuda-header", "0", "passed", "1", "failed", "0.1", "min"],
                ["together", "1.2", "min"],
            ],
        )


if __name__ == "__main__":
    unittest.main()
