"""The properties of the machine and of the software that all rows depend on.

Nothing here imports torch or makes a CUDA context: a third context beside those of the daemon and
the script would change what is measured.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from gpu_check.home import Home

# For nvidia-smi, which takes seconds where no other program uses the driver.
LONGEST_ANSWER_S = 20.0


def facts(home: Home, commit: str) -> dict[str, str]:
    """By name, what the head of the table says."""
    found = {
        "device": "a fake GPU (base/cuda/fake)" if home.fake else "none",
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "torch": _version("torch"),
        "kernel": platform.release(),
        "CPUs": str(os.cpu_count()),
        "memory": f"{memory_bytes('MemTotal') / 2**30:.0f} GiB",
        "huge pages of shared memory": _huge_pages(),
    }
    if not home.fake:
        answers = ask_gpu(home, "name", "memory.total", "driver_version", "pcie.link.gen.max")
        if answers:
            found["device"] = f"{answers[0]}, {float(answers[1]) / 1024:.0f} GiB"
            found["driver"] = answers[2]
            found["PCIe generation"] = answers[3]
    return found


def ask_gpu(home: Home, *questions: str) -> list[str]:
    """The answers of nvidia-smi about the GPU that is used. Empty: there is no nvidia-smi, or no
    GPU, or it does not answer, as after some errors of a GPU."""
    question = gpu_question(home, *questions)
    line = _first_line(question, home) if question else ""
    return [answer.strip() for answer in line.split(",")] if line else []


def gpu_question(home: Home, *questions: str) -> list[str]:
    """The command that asks nvidia-smi about the GPU that is used, which CUDA_VISIBLE_DEVICES may
    have chosen. Empty: there is none."""
    nvidia_smi = shutil.which("nvidia-smi")
    probe = home.program("gpu_probe")
    uuid = _first_line([str(probe), "--uuid"], home) if nvidia_smi and probe.exists() else ""
    if nvidia_smi is None or not uuid:
        return []
    form = [f"--query-gpu={','.join(questions)}", "--format=csv,noheader,nounits"]
    return [nvidia_smi, f"--id={uuid}", *form]


def _first_line(command: list[str], home: Home) -> str:
    """A program's first line; empty: it failed, or does not end."""
    try:
        done = subprocess.run(
            command,
            env=home.environment(),
            capture_output=True,
            text=True,
            timeout=LONGEST_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return "" if done.returncode else done.stdout.strip().split("\n")[0]


def gpu_bytes(home: Home) -> int:
    """The memory of the GPU that is used; 0 without one."""
    answers = ask_gpu(home, "memory.total")
    return int(float(answers[0]) * 2**20) if answers else 0


def memory_bytes(name: str) -> int:
    """A line of /proc/meminfo, such as MemAvailable."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _huge_pages() -> str:
    file = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not file.exists():
        return "none"
    return file.read_text(encoding="ascii").split("[")[-1].split("]")[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
