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

# For nvidia-smi, which takes seconds where no other program uses the driver.
LONGEST_ANSWER_S = 20.0


def facts(fake: bool, commit: str) -> dict[str, str]:
    """By name, what the head of the table says."""
    found = {
        "device": "a fake GPU (base/cuda/fake)" if fake else "none",
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "torch": _version("torch"),
        "kernel": platform.release(),
        "CPUs": str(os.cpu_count()),
        "memory": f"{memory_bytes('MemTotal') / 2**30:.0f} GiB",
        "huge pages of shared memory": _huge_pages(),
    }
    if not fake:
        answers = ask_gpu("name", "memory.total", "driver_version", "pcie.link.gen.max")
        if answers:
            found["device"] = f"{answers[0]}, {float(answers[1]) / 1024:.0f} GiB"
            found["driver"] = answers[2]
            found["PCIe generation"] = answers[3]
    return found


def ask_gpu(*questions: str) -> list[str]:
    """The answers of nvidia-smi about the first GPU. Empty: there is no nvidia-smi, or no GPU, or
    it does not answer, as after some errors of a GPU."""
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return []
    try:
        done = subprocess.run(
            [nvidia_smi, f"--query-gpu={','.join(questions)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=LONGEST_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []
    first = done.stdout.strip().split("\n")[0]
    return [answer.strip() for answer in first.split(",")] if first and not done.returncode else []


def gpu_bytes() -> int:
    """The memory of the first GPU; 0 without one."""
    answers = ask_gpu("memory.total")
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
