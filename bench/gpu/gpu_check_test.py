#!/usr/bin/env python3
"""The parts of gpu-check: chosen, limited, kept and gone on with; and rows beside predictions."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_check import expect, llama_parts, training, training_parts  # noqa: E402
from gpu_check import main as program  # noqa: E402
from gpu_check.all_parts import ALL  # noqa: E402
from gpu_check.facts import ask_gpu, facts  # noqa: E402
from gpu_check.home import Home  # noqa: E402
from gpu_check.parts import (  # noqa: E402
    LONGEST_ESSENTIAL_S,
    LONGEST_FRONTIER_S,
    LONGEST_S,
    Bench,
    Part,
    run_part,
)
from gpu_check.predictions import Prediction, Predictions  # noqa: E402
from gpu_check.rows import Report  # noqa: E402


def one_row(_bench):
    yield {"name": "speed", "value": 3.0, "unit": "GB/s", "at_least": 2}


def prediction_of(part, row):
    return Predictions({part: {row: Prediction("2 to 4", "GB/s", "guess")}}, {"guess": "a guess"})


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)
        self.bench = Bench(Home(self.out, fake=True), self.out)


class TheListOfParts(unittest.TestCase):
    def test_no_part_and_not_all_essential_ones_may_take_longer_than_promised(self):
        self.assertLessEqual(max(part.limit_s for part in ALL), LONGEST_S)
        for group, most_s in (("essential", LONGEST_ESSENTIAL_S), ("frontier", LONGEST_FRONTIER_S)):
            limit_s = sum(part.limit_s for part in ALL if getattr(part, group))
            self.assertTrue(0 < limit_s <= most_s, limit_s)

    def test_two_commands_run_their_own_parts(self):
        for group in ("essential", "frontier"):
            parts = program.chosen(program.parse(["--home", "/nowhere", f"--{group}"]))
            self.assertEqual(parts, [part for part in ALL if getattr(part, group)])

    def test_each_part_has_predictions_whose_sources_are_explained(self):
        predictions = Predictions.read()
        self.assertEqual({part.name for part in ALL}, set(predictions.by_part))
        for part, rows in predictions.by_part.items():
            self.assertTrue(rows, part)
            for name, prediction in rows.items():
                self.assertTrue(prediction.says, name)
                self.assertIn(prediction.source, predictions.sources, name)

    def test_every_question_of_gpu_probe_is_asked_once(self):
        here = Path(__file__).resolve().parent
        questions = re.findall(r'\{"([a-z-]+)", Probe', (here / "gpu_probe.cc").read_text())
        calls = re.findall(r"probes\(([^)]*)\)", (here / "gpu_check/all_parts.py").read_text())
        in_parts = re.findall(r'"([a-z-]+)"', " ".join(calls))
        self.assertTrue(questions)
        self.assertEqual(sorted(questions), sorted(in_parts))

    def test_the_list_names_parts_limits_and_predictions_and_runs_nothing(self):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = program.main(["--home", "/nowhere", "--list", "--part", "copies"])
        self.assertEqual(status, 0)
        self.assertIn("copies: are the daemon's copies as fast as plain CUDA's?", output.getvalue())
        self.assertIn("50 to 55 GB/s [model]", output.getvalue())
        self.assertNotIn("contract", output.getvalue())

    def test_peers_are_run_only_if_they_are_asked_for(self):
        for flags, peers in (([], False), (["--peer"], True)):
            parts = program.chosen(program.parse(["--home", "/nowhere", *flags]))
            self.assertEqual(any(part.peer for part in parts), peers and any(p.peer for p in ALL))


class TheDocuments(unittest.TestCase):
    def test_of_a_step_are_by_step(self):
        record = {
            "iterations": 2,
            "waits_s": {"call": 0.5, "map": 0.25, "unmap": 0},
            "hooks": {"gradients": 4, "gradient_ns": 6e6, "operations": 8, "dispatch_ns": 2e6},
            "client": {"calls": 10, "maps": 12},
        }
        rows = list(training_parts._parts_of_a_step("", {"records": [{}, record]}))
        self.assertEqual([row["value"] for row in rows], [250, 125, 0, 3, 1])
        self.assertEqual([row["note"] for row in rows[:2]], ["5 of them", "6 of them"])

    def test_have_the_table_of_the_model(self):
        file = Path(__file__).resolve().parents[2] / "docs" / "gpu" / "README.md"
        self.assertIn(expect.table(), file.read_text(encoding="utf-8"))

    def test_name_only_parts_that_exist(self):
        file = Path(__file__).resolve().parents[2] / "docs" / "gpu" / "README.md"
        named = re.findall(r"--part ([a-z0-9-]+)", file.read_text(encoding="utf-8"))
        self.assertTrue(named)
        self.assertLessEqual(set(named), {part.name for part in ALL})


class OnACardThatIsPlayed(Scratch):
    """nvidia-smi is a script, and memtide is on no GPU."""

    def play(self, lines):
        """The card is not the machine's first: nothing is known of others."""
        (self.out / "bin").mkdir(exist_ok=True)
        others = "printf '1\\n9\\n'"
        scripts = {
            "nvidia-smi": f"case $* in *--id=GPU-7*) printf '{lines}' ;; *) {others} ;; esac",
            "bin/gpu_probe": "[ $1 = --uuid ] && echo GPU-7",
        }
        for name, text in scripts.items():
            (self.out / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.out / name).chmod(0o755)
        patch = unittest.mock.patch.dict(os.environ, PATH=f"{self.out}:{os.environ['PATH']}")
        patch.start()
        self.addCleanup(patch.stop)
        return Bench(Home(self.out, fake=False), self.out)

    def test_its_memory_is_sampled_without_a_context(self):
        bench = self.play("100\\n3100\\n600\\n")
        with training.GpuMemory(bench.home) as memory:
            pass
        self.assertEqual(memory.peak, 3000 * 2**20)

    def test_a_driver_that_does_not_answer_holds_nothing_up(self):
        bench = self.play("")
        (self.out / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
        with unittest.mock.patch("gpu_check.facts.LONGEST_ANSWER_S", 0.1):
            self.assertEqual(ask_gpu(bench.home, "name"), [])
            with training.GpuMemory(bench.home) as memory:
                pass
        self.assertEqual(memory.peak, 0)

    def test_a_small_one_skips_llama_with_a_reason(self):
        bench = self.play("24576\\n")
        for part, card_gb in (
            (llama_parts.llama, 80),
            (llama_parts.budget, 80),
            (llama_parts.compiled, 80),
            (llama_parts.embedding, 32),
            (llama_parts.fully_sharded, 32),
        ):
            rows = list(part(bench))
            self.assertEqual([row["answer"] for row in rows], ["skipped"])
            self.assertIn(f"{card_gb} GB; this one has 24 GiB", rows[0]["note"])

    def test_its_size_says_how_many_tokens_a_step_has(self):
        phases = training.gpt(self.play("24576\\n").home).phases
        self.assertEqual(phases, ("1", "1c", "4"))
        phases = training.gpt(self.play("81559\\n").home).phases
        self.assertEqual(phases, ("4", "4c", "32"))

    def test_its_name_and_driver_are_in_the_head(self):
        head = facts(self.play("Card 9, 24576, 580.10, 4\\n").home, commit="c")
        self.assertEqual((head["device"], head["driver"]), ("Card 9, 24 GiB", "580.10"))


class TheBoundOfTransfer(Scratch):
    def test_has_the_joint_rate_of_both_directions_or_the_busier_one(self):
        rates = {"from the host pool to the device": 50.0, "from the device to the host pool": 40.0}
        rates["both ways at once"] = 60.0
        rows = [{"name": f"64 MiB {name}", "value": rate} for name, rate in rates.items()]
        rows.append({"name": "64 MiB to the device through the staging ring", "value": 9.0})
        self.assertIsNone(training_parts.transfer_s(self.bench, 1e9, 1e9))
        run_part(Part("copies", "?", 9, lambda _: rows), self.bench)
        for moved, seconds in (((12e9, 12e9), 0.4), ((10e9, 1e9), 0.2), ((0, 8e9), 0.2)):
            self.assertAlmostEqual(training_parts.transfer_s(self.bench, *moved), seconds)


class ATimedStep(Scratch):
    def test_of_llama_is_one_of_three_and_its_kernels_are_those_of_training(self):
        arguments = llama_parts._job(self.bench)[0].arguments
        self.assertNotIn("--deterministic-steps", arguments)
        self.assertEqual(arguments[arguments.index("--steps") + 1], "5")


class StepsInParts(Scratch):
    def test_are_those_of_a_job_of_which_parts_may_run_during_backward(self):
        commands = []

        def run(_home, command, _tensors_on_cpu):
            commands.append([str(word) for word in command])
            for option in commands[0]:
                if option.startswith("--stats="):
                    Path(option[len("--stats=") :]).write_text("{}")
            Path(commands[0][-1]).write_text("")

        daemon = contextlib.nullcontext("/sockets")
        with (
            unittest.mock.patch.object(training, "run", run),
            unittest.mock.patch.object(Home, "daemon", lambda *_: daemon),
        ):
            training.under_memtide(self.bench, training.gpt(self.bench.home), 1, named=True)
        self.assertIn("--job=gpu-check", commands[0])
        self.assertIn("--socket-dir=/sockets", commands[0])
        self.assertNotIn("--skip-non-finite", commands[0])


class ARowsPrediction(unittest.TestCase):
    def test_stands_beside_what_was_found(self):
        report = Report({}, prediction_of("copies", "speed"))
        report.add_part("copies", list(one_row(None)))
        self.assertFalse(report.missed)
        table = report.as_markdown({"copies": "Copies?"})
        self.assertIn("| speed | 2 to 4 GB/s | 3 GB/s | ≥ 2 | met |", table)

    def test_is_required(self):
        report = Report({}, Predictions({}, {}))
        report.add_part("copies", list(one_row(None)))
        self.assertEqual([row.name for row in report.missed], ["speed"])
        self.assertIn("no prediction", report.missed[0].note)

    def test_is_not_required_of_a_failure(self):
        report = Report({}, Predictions({}, {}))
        report.add_part("copies", [{"name": "all of copies", "failed": True, "note": "why"}])
        self.assertEqual(report.missed[0].note, "why")


class APart(Scratch):
    def test_that_fails_is_a_row_and_keeps_what_it_found_before(self):
        def run(bench):
            yield from one_row(bench)
            yield {"name": "heat"}
            raise RuntimeError("the GPU is on fire")

        rows = run_part(Part("p", "?", 9, run), self.bench)
        self.assertEqual([row["name"] for row in rows], ["speed", "heat", "all of p"])
        self.assertIn("the GPU is on fire", rows[2]["note"])
        self.assertEqual(self.bench.rows_of("p"), rows)

    def test_that_is_late_is_a_row_and_its_children_are_killed(self):
        # A sleep of this length is of this test alone.
        sleep = f"sleep 600.{os.getpid()}"

        def run(bench):
            bench.home.run(["bash", "-c", f"{sleep} & echo begun >&2; wait"])
            yield {}

        rows = run_part(Part("p", "?", 1, run), self.bench)
        self.assertEqual([row["name"] for row in rows], ["all of p"])
        self.assertEqual(rows[0]["note"], "not done in 1 s / begun")
        left = subprocess.run(["pgrep", "-f", f"^{sleep}"], capture_output=True, check=False)
        self.assertEqual(left.stdout, b"")

    def test_that_is_late_does_not_shorten_the_next(self):
        home = self.bench.home
        run_part(Part("late", "?", 0, lambda _: iter(())), self.bench)
        self.assertLess(home.deadline, time.monotonic() + 1)

        def run(bench):
            yield {"name": bench.home.run(["echo", "done"]).stdout}

        self.assertEqual(run_part(Part("next", "?", 60, run), self.bench)[0]["name"], "done\n")

    def test_that_is_done_is_skipped_by_a_run_that_goes_on(self):
        calls = []

        def run(bench):
            calls.append(1)
            yield from one_row(bench)

        part = Part("p", "?", 9, run)
        with contextlib.redirect_stderr(io.StringIO()):
            program.run([part], self.bench, goes_on=True)
            program.run([part], self.bench, goes_on=True)
            self.assertEqual(len(calls), 1)
            program.run([part], self.bench, goes_on=False)
        self.assertEqual(len(calls), 2)

    def test_that_a_new_run_did_not_reach_has_no_rows_of_an_old_one(self):
        def interrupted(_bench):
            yield {"name": "half"}
            raise KeyboardInterrupt

        last = Part("last", "?", 9, one_row)
        with contextlib.redirect_stderr(io.StringIO()):
            program.run([last], self.bench, goes_on=False)
            with self.assertRaises(KeyboardInterrupt):
                program.run([Part("p", "?", 9, interrupted), last], self.bench, goes_on=False)
        self.assertEqual(self.bench.rows_of("p") + self.bench.rows_of("last"), [])


class TheTable(Scratch):
    def test_is_of_the_parts_that_are_done_in_the_order_of_the_list(self):
        for name in ("copies", "contract"):
            file = self.out / "parts" / f"{name}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({"rows": [{"name": f"row of {name}"}]}))
        report = program.report_of(self.bench, {}, Predictions({}, {}))
        self.assertEqual([row.section for row in report.rows], ["contract", "copies"])


if __name__ == "__main__":
    unittest.main()
