"""Times of an answer, and of a sweep over many machines: seconds of CPU time, and of the clock.

    PYTHONPATH=pyclient python bench/plan/plan_times.py [--machines N] [--open]

Both are in one process, whose imports are not counted. The planner's process has to be found:
memtide-replay on PATH, or $MEMTIDE_REPLAY.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

from memtide._plan_file.question import Question
from memtide._plan_file.training import Training
from memtide_plan.ask.machine import machine_of
from memtide_plan.ask.words import MachineWords
from memtide_plan.fastest import ask
from memtide_plan.models.config import described_by
from memtide_plan.models.config_file import ConfigFile
from memtide_plan.row_inputs import MODELS as CONFIGS
from memtide_plan.sweep import range_of, sweep

MODELS = ("llama-3-8b", "gpt2-xl")
RANGES = ("host-memory=16GiB..256GiB", "ssd=1GB/s..14GB/s")
BATCH, SEQUENCE = 16, 1024


def cpu_s() -> float:
    """This process's CPU time, and that of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(what: str, act: Callable[[], object]) -> None:
    """Prints what it takes."""
    began_cpu_s, began_s = cpu_s(), time.monotonic()
    act()
    took_cpu_s, took_s = cpu_s() - began_cpu_s, time.monotonic() - began_s
    print(f"{what:55} {took_cpu_s:7.2f} s of CPU {took_s:7.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=1000, metavar="N")
    parser.add_argument("--open", action="store_true", help="search the batch, too")
    flags = parser.parse_args()
    machine = machine_of(MachineWords(gpu="rtx4090", host_memory="64GiB", ssd="7GB/s"))
    configs = json.loads(CONFIGS.read_text(encoding="utf-8"))
    for name in MODELS:
        question = Question(
            model=described_by(ConfigFile(Path(f"{name}.json"), configs[name])).model,
            machine=machine,
            training=Training(batch=1, sequence=1),
            batch=None if flags.open else BATCH,
            sequence=SEQUENCE,
        )
        timed(f"{name}: an answer", lambda q=question: ask(q))
        for text in RANGES:
            budgets = range_of(f"{text}:{flags.machines}")
            timed(f"{name}: {text}:{flags.machines}", lambda q=question, b=budgets: sweep(q, b))


if __name__ == "__main__":
    main()
