#!/usr/bin/env python3
"""Looks for what breaks memtide, until the time is over or something is found.

    tools/soak.py [--minutes N] [--seed S]   an hour, if no number is given

In turn: the simulations with fresh seeds; libFuzzer on each fuzz target, whose corpus stays in the
cache folder; and the tests that kill processes, with random options. The seed is printed; without
one it is the date and time. The last lines are a summary: what ran how often, and what was found.
Exits 0 if nothing was, 1 if something was, 2 if something cannot be built.

Runs on Python's standard library alone.
"""

import argparse
import datetime
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shell import bazel

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(
    os.environ.get("MEMTIDE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memtide"
)
SIMULATIONS = (
    "//tests/sim:sim_test",
    "//tests/sim:rank_test",
    "//tests/sim:common_test",
    "//tests/sim:pipeline_test",
)
KILLS = ("//tests/integration:stepping_test",)
SEEDS_A_RUN = 1000
FUZZ_SECONDS = 20
LAST_LINES = 40


@dataclass
class Soak:
    """The counts of runs, and the findings. `deadline`: of time.monotonic()."""

    chance: random.Random
    next_seed: int
    deadline: float
    root: Path = ROOT
    counts: Counter = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    @property
    def goes_on(self):
        return not self.found and time.monotonic() < self.deadline

    def run_test(self, target, what, environment):
        """Runs a test with variables that a person can set in the same way."""
        variables = [f"--test_env={name}={value}" for name, value in environment.items()]
        status, output = bazel(
            self.root, 'bazel_test -c opt --nocache_test_results "$@"', *variables, target
        )
        if status == 0:
            return True
        seed = re.search(r"^seed (\d+)$|Google Test trace:\n.*\bseed (\d+)\b", output, re.MULTILINE)
        if seed and "MEMTIDE_SIM_FIRST" in environment:
            environment = {
                "MEMTIDE_SIM_FIRST": seed.group(1) or seed.group(2),
                "MEMTIDE_SIM_SEEDS": 1,
            }
        again = " ".join(f"--test_env={name}={value}" for name, value in environment.items())
        self.find(what, output, f"bazel test -c opt {again} {target}")
        return False

    def find(self, what, output, command):
        print(*output.splitlines()[-LAST_LINES:], sep="\n")
        print(f"FOUND: {what}\nto see it again:\n  {command}", flush=True)
        self.found.append(f"{what}: {command}")

    def simulate(self):
        for target in SIMULATIONS:
            if not self.goes_on:
                return
            first, self.next_seed = self.next_seed, self.next_seed + SEEDS_A_RUN
            environment = {"MEMTIDE_SIM_FIRST": first, "MEMTIDE_SIM_SEEDS": SEEDS_A_RUN}
            if self.run_test(target, f"{target}, a seed from {first} on", environment):
                self.counts[f"seeds of {target}"] += SEEDS_A_RUN

    def kill(self):
        for target in KILLS:
            if not self.goes_on:
                return
            seed = self.chance.randrange(1, 1 << 32)
            if self.run_test(target, f"{target}, options {seed}", {"MEMTIDE_KILL_SEED": seed}):
                self.counts[f"runs of {target}"] += 1

    def fuzz(self, targets, binaries):
        for target in targets:
            if not self.goes_on:
                return
            name = target[2:].replace("/", "-").replace(":", "-")
            corpus, artifacts = CACHE / "fuzz" / "corpus" / name, CACHE / "fuzz"
            corpus.mkdir(parents=True, exist_ok=True)
            left = max(1, min(FUZZ_SECONDS, int(self.deadline - time.monotonic())))
            seed = self.chance.randrange(1, 1 << 32)
            done = subprocess.run(
                [
                    binaries / target[2:].replace(":", "/"),
                    corpus,
                    f"-max_total_time={left}",
                    f"-seed={seed}",
                    "-print_final_stats=1",
                    f"-artifact_prefix={artifacts}/{name}-",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            runs = re.search(r"stat::number_of_executed_units: *(\d+)", done.stdout)
            self.counts[f"inputs of {target}"] += int(runs.group(1)) if runs else 0
            if done.returncode == 0:
                continue
            file = re.search(r"Test unit written to (\S+)", done.stdout)
            again = file.group(1) if file else f"-seed={seed} {corpus}"
            command = f"bazel run --config=fuzz {target} -- {again}"
            self.find(f"{target}, seed {seed}", done.stdout, command)


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    now = datetime.datetime.now(datetime.UTC)
    parser.add_argument("--seed", type=int, default=int(f"{now:%Y%m%d%H%M}"))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    status, output = bazel(
        ROOT, "bazel_query 'attr(tags, \"\\bfuzz\\b\", //daemon/... + //client/...)'"
    )
    targets = [line for line in output.splitlines() if line.startswith("//")]
    builds = [
        ('bazel_build -c opt "$@"', (*SIMULATIONS, *KILLS)),
        ('bazel_build --config=fuzz "$@"', tuple(targets)),
    ]
    for script, of in builds:
        if status == 0:
            status, output = bazel(ROOT, script, *of)
    if status != 0:
        print(output, file=sys.stderr)
        return 2
    binaries = Path(bazel(ROOT, "bazel_bin --config=fuzz")[1].strip().splitlines()[-1])
    # Seeds below a million are those of other tests.
    soak = Soak(
        random.Random(options.seed),
        1_000_000 + options.seed * 1000,
        time.monotonic() + 60 * options.minutes,
    )
    while soak.goes_on:
        soak.simulate()
        soak.fuzz(targets, binaries)
        soak.kill()
    print(f"\nseed {options.seed}")
    for what, count in sorted(soak.counts.items()):
        print(f"{count:12} {what}")
    print(f"found: {'; '.join(soak.found) or 'nothing'}")
    return 1 if soak.found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
