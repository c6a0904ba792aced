"""Runs all checks, one after the other. A failed check is a row, and the next check follows.

main.py --home DIR --out DIR [--commit TEXT] [--fake]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpu_check import training
from gpu_check.home import Home, python
from gpu_check.rows import Report

_LIMIT_S = 120.0


def facts(home: Home, commit: str) -> dict[str, str]:
    """The properties of the machine and of the software that all rows depend on."""
    found = {
        "device": "a fake GPU (base/cuda/fake)" if home.fake else "none",
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "torch": str(torch.__version__),
        "kernel": platform.release(),
        "CPUs": str(os.cpu_count()),
    }
    if not home.fake and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is not None:
        done = subprocess.run(
            [nvidia_smi, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        found["driver"] = done.stdout.strip().split("\n")[0]
    return found


class Checks:
    """The sections of one run."""

    def __init__(self, home: Home, report: Report) -> None:
        self._home = home
        self._report = report
        self._bytes_per_s: float | None = None

    def run(self) -> None:
        """Runs every section."""
        sections: list[tuple[str, Callable[[str], None]]] = [
            ("The device contract", self._contract),
            ("What the driver does", self._probe),
            ("The C++ example", self._example),
            ("Tensors over chunks", self._tensors),
            ("Bad input", self._bad_input),
            ("Training", self._training),
        ]
        for name, section in sections:
            start = time.monotonic()
            print(f"gpu-check: {name} ...", file=sys.stderr, flush=True)
            try:
                section(name)
            except (OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
                self._report.fail(name, "the whole section", str(error))
            print(f"gpu-check: {name}: {time.monotonic() - start:.0f} s", file=sys.stderr)

    def _contract(self, section: str) -> None:
        importer = str(self._home.program("gpu_importer"))
        done = self._home.run(
            [self._home.program("gpu_contract")], _LIMIT_S, CUDA_IMPORTER=importer
        )
        lines = done.stdout.splitlines()
        passed = sum(line.startswith("[       OK ]") for line in lines)
        failed = [line.split("] ")[1] for line in lines if line.startswith("[  FAILED  ]")]
        self._report.add(
            section,
            {
                "name": "tests of the device seam, by descriptor and by legacy handle",
                "answer": f"{passed} passed" + (f", failed: {failed}" if failed else ""),
                "met": done.returncode == 0 and passed > 0,
                "goal": "all",
            },
        )

    def _probe(self, section: str) -> None:
        probe = self._home.program("gpu_probe")
        for question in self._home.run([probe, "--list"], _LIMIT_S).stdout.split():
            try:
                done = self._home.run([probe, question], _LIMIT_S)
            except subprocess.TimeoutExpired:
                self._report.fail(section, question, f"no answer in {_LIMIT_S:.0f} s")
                continue
            self._add_lines(section, done.stdout)
            if done.returncode != 0:
                self._report.fail(section, question, done.stderr or f"status {done.returncode}")

    def _add_lines(self, section: str, text: str) -> None:
        for line in text.splitlines():
            found = json.loads(line)
            self._report.add(section, found)
            if found.get("unit") == "GB/s" and "both" not in found["name"]:
                speed = found["value"] * 1e9
                self._bytes_per_s = min(self._bytes_per_s or speed, speed)

    def _example(self, section: str) -> None:
        with self._home.daemon("--device-pool=256MiB", "--host-pool=256MiB") as sockets:
            for flags, name in (([], "descriptors"), (["--ipc"], "legacy handles")):
                command = [self._home.program("gpu_chunk"), *flags, sockets]
                done = self._home.run(command, _LIMIT_S)
                row = {"name": f"written, evicted to SSD, fetched and verified by {name}"}
                if done.returncode == 0:
                    self._report.add(section, {**row, "answer": "equal", "met": True})
                else:
                    self._report.fail(section, row["name"], done.stderr)

    def _tensors(self, section: str) -> None:
        chunk_mib = 64 if not self._home.fake else 4
        pool = f"--device-pool={16 * chunk_mib}MiB"
        with self._home.daemon(pool, f"--host-pool={16 * chunk_mib}MiB") as sockets:
            command = python(self._home, "tensors", str(sockets), str(chunk_mib))
            done = self._home.run(command, _LIMIT_S)
        self._add_lines(section, done.stdout)
        if done.returncode != 0:
            self._report.fail(section, "tensors.py", done.stderr)

    def _bad_input(self, section: str) -> None:
        with tempfile.TemporaryDirectory(prefix="mt", dir="/tmp") as scratch:
            daemon = [
                self._home.program("memtided"),
                f"--socket-dir={scratch}/s",
                "--host-pool=64MiB",
                "--no-ssd",
                "--metrics-address=off",
            ]
            cases = {
                "a daemon whose GPU is hidden": (["--device=cuda"], {"CUDA_VISIBLE_DEVICES": ""}),
                "a device that is not there": (["--device=cuda:99"], {}),
                "a pool larger than the GPU": (["--device=cuda", "--device-pool=4TiB"], {}),
            }
            for name, (flags, variables) in cases.items():
                done = self._home.run([*daemon, *flags], _LIMIT_S, **variables)
                lines = done.stderr.strip().splitlines() or [""]
                self._report.add(
                    section,
                    {
                        "name": name,
                        "answer": lines[-1][-300:],
                        "met": done.returncode in (1, 2) and len(lines[-1]) > 0,
                        "goal": "refused, with a reason",
                    },
                )

    def _training(self, section: str) -> None:
        for row in training.compare(self._home, self._free_bytes, self._bytes_per_s):
            self._report.add(section, row)

    def _free_bytes(self) -> int:
        if self._home.fake or not torch.cuda.is_available():
            return 0
        return int(torch.cuda.mem_get_info(0)[0])


def main(arguments: list[str]) -> int:
    """Runs all checks and writes the table. Returns 1 if a goal was missed or a check failed."""
    parser = argparse.ArgumentParser(prog="gpu-check")
    parser.add_argument("--home", type=Path, required=True, help="an unpacked tarball")
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="where the table goes")
    parser.add_argument("--commit", default="unknown", help="what the tarball was built from")
    parser.add_argument("--fake", action="store_true", help="on the fake CUDA")
    options = parser.parse_args(arguments)
    home = Home(options.home.resolve(), options.fake)
    report = Report(facts(home, options.commit), judges_figures=not options.fake)
    start = time.monotonic()
    Checks(home, report).run()
    report.facts["took"] = f"{time.monotonic() - start:.0f} s"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu-check.json").write_text(report.as_json() + "\n", encoding="utf-8")
    (options.out / "gpu-check.md").write_text(report.as_markdown(), encoding="utf-8")
    print(report.as_markdown())
    for row in report.missed:
        print(f"gpu-check: missed: {row.section}: {row.name}: {row.result} {row.note}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
