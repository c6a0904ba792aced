"""The design's questions to the driver, answered by C++ programs, a question a process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from gpu_check.parts import Bench, lines
from gpu_check.rows import failed

_Rows = Iterator[dict[str, Any]]


def contract(bench: Bench) -> _Rows:
    """The tests that every device passes, on this one."""
    importer = str(bench.home.program("gpu_importer"))
    done = bench.home.run([bench.home.program("gpu_contract")], CUDA_IMPORTER=importer)
    results = done.stdout.splitlines()
    passed = sum(line.startswith("[       OK ]") for line in results)
    wrong = [line.split("] ")[1] for line in results if line.startswith("[  FAILED  ]")]
    yield {
        "name": "tests of the device seam, by descriptor and by legacy handle",
        "answer": f"{passed} passed" + (f", failed: {wrong}" if wrong else ""),
        "met": done.returncode == 0 and passed > 0,
        "goal": "all",
    }


def probes(*questions: str) -> Callable[[Bench], _Rows]:
    """A part that asks gpu_probe these questions. One that has no answer does not cost the others
    theirs, but for the time that it takes."""

    def run(bench: Bench) -> _Rows:
        for question in questions:
            yield from _probe(bench, question)

    return run


def _probe(bench: Bench, question: str) -> _Rows:
    try:
        done = bench.home.run([bench.home.program("gpu_probe"), question])
    except subprocess.TimeoutExpired as late:
        yield from lines(str(late.output or ""))
        raise
    yield from lines(done.stdout)
    if done.returncode != 0:
        yield failed(question, done.stderr or f"status {done.returncode}")
