"""`memtide doctor`: checks what memtide needs of this machine, and names the remedies."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.table import Table

from memtide._capi import admin, client
from memtide._capi.locate import default_socket_dir, default_ssd_dir, find_daemon
from memtide._cli import status
from memtide._daemon import inspection
from memtide._daemon.inspection import HostMemory
from memtide._util.sizes import format_size
from memtide.errors import MemtideError

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_SYS_IO_URING_SETUP = 425
_USER_MODE_ONLY = 1
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_NVIDIA_UVM = Path("/dev/nvidia-uvm")
_NUMA_NODES = Path("/sys/devices/system/node/online")
# In a GPU's line of `memtided --list-gpus`, where its node is known.
_ON_NODE = ", NUMA node "
_MEMLOCK_WANTED_BYTES = 64 * 2**20
_SSD_WANTED_BYTES = 4 * 2**30
# Between a GPU in the list of `memtided --list-gpus` and the reason.
_NOT_USABLE = ", not usable: "
# Before what memtide does instead of what a GPU cannot, in the answers of `memtided --ask-gpus`.
_FALLBACK = "  "
_NEWER = "a version of torch that docs/dependencies.md names"


class Verdict(Enum):
    """The result of a check."""

    GOOD = "[green]ok[/]"
    SLOW = "[yellow]slow[/]"
    BAD = "[red]missing[/]"


@dataclass(frozen=True)
class Finding:
    """One check: its subject, its result, the state of the machine and the remedy."""

    subject: str
    verdict: Verdict
    state: str
    remedy: str = ""


def print_diagnosis(ssd_dir: Path | None, console: Console) -> int:
    """Prints all findings and returns the exit status: 1 if memtide cannot work here."""
    findings = diagnose(ssd_dir)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", "", "state", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.verdict.value, finding.subject, finding.state, finding.remedy)
    console.print(table)
    return int(any(finding.verdict is Verdict.BAD for finding in findings))


def diagnose(ssd_dir: Path | None = None) -> list[Finding]:
    """Runs all checks. None of them changes the machine."""
    checks: list[Callable[[], Finding]] = [
        _library,
        _daemon,
        _service,
        _huge_pages,
        _userfaultfd,
        _io_uring,
        _memlock,
        _gpu,
        _pinned_memory,
        _numa,
        lambda: _ssd(ssd_dir or default_ssd_dir()),
        _torch,
        _torch_hooks,
    ]
    return [check() for check in checks]


def _library() -> Finding:
    try:
        return Finding("libmemtide.so", Verdict.GOOD, client.version())
    except MemtideError as error:
        return Finding("libmemtide.so", Verdict.BAD, str(error), "install the memtide package")


def _daemon() -> Finding:
    try:
        return Finding("memtided", Verdict.GOOD, str(find_daemon()))
    except MemtideError as error:
        return Finding("memtided", Verdict.BAD, str(error), "install the memtide package")


def _service() -> Finding:
    where = default_socket_dir()
    try:
        admin.inspect_node(where)
    except MemtideError:
        return Finding(
            "node's daemon", Verdict.GOOD, f"none at {where}; `memtide run` starts a private one"
        )
    return Finding("node's daemon", Verdict.GOOD, f"answers at {where}")


def _gpu() -> Finding:
    driver = _read(_NVIDIA_DRIVER)
    if not driver:
        return Finding("GPU", Verdict.GOOD, "no NVIDIA driver: device pools are emulated")
    gpu_name = " ".join(driver.splitlines()[0].split())
    if not os.access(_NVIDIA_UVM, os.R_OK | os.W_OK):
        return Finding(
            "GPU",
            Verdict.SLOW,
            f"{gpu_name}, which cannot be used: this user cannot open {_NVIDIA_UVM}",
            "modprobe nvidia-uvm; give a container the GPU's devices",
        )
    if "no CUDA" in _ask_daemon("--version").stdout:
        return Finding(
            "GPU",
            Verdict.SLOW,
            f"{gpu_name}, which cannot be used: memtided was built without CUDA",
            "build memtide with the CUDA toolkit (CUDA_HOME)",
        )
    listing = _ask_daemon("--list-gpus")
    if listing.returncode != 0:
        why = listing.stderr.removeprefix("memtided: ").strip()
        return Finding("GPU", Verdict.SLOW, f"{gpu_name}, which cannot be used", why)
    gpus = listing.stdout.splitlines()
    refused = [gpu for gpu in gpus if _NOT_USABLE in gpu]
    state = "\n".join([gpu_name, *(gpu.partition(_NOT_USABLE)[0] for gpu in gpus)])
    if not refused:
        return _with_answers(state)
    remedies = [gpu.partition(_NOT_USABLE)[2] for gpu in refused]
    return Finding("GPU", Verdict.SLOW, state, "\n".join(remedies))


def _with_answers(state: str) -> Finding:
    """The GPUs, with what they do of what memtide relies on. Asking a GPU that memtide has not met
    takes a second or two."""
    process = _ask_daemon("--ask-gpus", timeout_s=60)
    if process.returncode != 0:
        why = process.stderr.removeprefix("memtided: ").strip()
        return Finding("GPU", Verdict.SLOW, state, why)
    lines = process.stdout.splitlines()
    fallbacks = [line.strip() for line in lines if line.startswith(_FALLBACK)]
    answers = [line for line in lines if not line.startswith(_FALLBACK)]
    verdict = Verdict.SLOW if fallbacks else Verdict.GOOD
    return Finding("GPU", verdict, "\n".join([state, *answers]), "\n".join(fallbacks))


def _pinned_memory() -> Finding:
    subject = "pinned memory"
    memory = _host_memory()
    if memory is None:
        state = "no daemon runs; it finds out how much this machine permits"
        return Finding(subject, Verdict.GOOD, state)
    state = status.host_memory_line(memory).removeprefix("host memory: ") or "none is needed"
    if not memory.unpinned_bytes:
        return Finding(subject, Verdict.GOOD, state)
    return Finding(
        subject,
        Verdict.SLOW,
        state,
        "end programs that pin memory; raise the container's limit; on WSL2 memory= in .wslconfig",
    )


def _numa() -> Finding:
    subject = "NUMA"
    online = _read(_NUMA_NODES).strip()
    if not any(separator in online for separator in "-,"):
        return Finding(subject, Verdict.GOOD, "one node")
    gpus = [line for line in _ask_daemon("--list-gpus").stdout.splitlines() if _ON_NODE in line]
    state = [f"nodes {online}", *gpus]
    memory = _host_memory()
    if memory is not None and memory.numa_node is not None:
        state.append(f"the host pool is on node {memory.numa_node}")
        return Finding(subject, Verdict.GOOD, "\n".join(state))
    if memory is not None and memory.numa_node_by_device:
        state.append("the host memory of each job is on the node of its GPU")
        return Finding(subject, Verdict.GOOD, "\n".join(state))
    if gpus:
        state.append("memtided takes the host memory of each job from its GPU's node")
        return Finding(subject, Verdict.GOOD, "\n".join(state))
    if not _read(_NVIDIA_DRIVER):
        return Finding(subject, Verdict.GOOD, "\n".join([*state, "no GPU to be near to"]))
    return Finding(
        subject,
        Verdict.SLOW,
        "\n".join([*state, "the GPU's is unknown, so host memory is on any"]),
        "bind memtided to the GPU's node (nvidia-smi topo -m): numactl --cpunodebind=N "
        "--preferred=N memtided",
    )


def _host_memory() -> HostMemory | None:
    """The host memory of the node's daemon. None: no daemon answers."""
    try:
        return inspection.inspect(default_socket_dir()).host_memory
    except MemtideError:
        return None


def _ask_daemon(flag: str, timeout_s: float = 10) -> subprocess.CompletedProcess[str]:
    """Runs `memtided FLAG`. Without a daemon the answer is empty; `_daemon` reports that."""
    try:
        return subprocess.run(
            [find_daemon(), flag], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (MemtideError, OSError, subprocess.SubprocessError):
        return subprocess.CompletedProcess([], 0, stdout="", stderr="")


def _huge_pages() -> Finding:
    reserved = _first_number(Path("/proc/sys/vm/nr_hugepages"))
    shmem = _read(Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    chosen = shmem[shmem.find("[") + 1 : shmem.find("]")] if "[" in shmem else "unknown"
    state = f"{reserved} reserved; for shared memory: {chosen}"
    if reserved or chosen in ("always", "within_size", "advise", "force"):
        return Finding("huge pages", Verdict.GOOD, state)
    return Finding(
        "huge pages",
        Verdict.SLOW,
        state + "; to map a chunk takes 60 times as long",
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )


def _userfaultfd() -> Finding:
    number = _SYS_USERFAULTFD.get(platform.machine())
    if number is None:
        return Finding("userfaultfd", Verdict.BAD, f"memtide does not support {platform.machine()}")
    if _opens(number, os.O_CLOEXEC | os.O_NONBLOCK) or os.access("/dev/userfaultfd", os.R_OK):
        return Finding("userfaultfd", Verdict.GOOD, "full: system calls can access chunks")
    if _opens(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY):
        return Finding(
            "userfaultfd",
            Verdict.SLOW,
            "user mode only: torch.save copies each tensor first",
            "join the group memtide, to which the package's udev rule gives /dev/userfaultfd, or "
            "sysctl vm.unprivileged_userfaultfd=1",
        )
    return Finding(
        "userfaultfd", Verdict.BAD, "refused", "use Linux 5.11 or later; allow it in the sandbox"
    )


def _io_uring() -> Finding:
    parameters = (ctypes.c_char * 120)()
    if _opens(_SYS_IO_URING_SETUP, 1, ctypes.byref(parameters)):
        return Finding("io_uring", Verdict.GOOD, "allowed")
    return Finding(
        "io_uring",
        Verdict.SLOW,
        "refused: threads read and write the SSD",
        "sysctl kernel.io_uring_disabled=0; allow it in the sandbox",
    )


def _memlock() -> Finding:
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= _MEMLOCK_WANTED_BYTES or os.geteuid() == 0:
        limit = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
        return Finding("locked memory", Verdict.GOOD, limit)
    return Finding(
        "locked memory",
        Verdict.SLOW,
        f"limited to {format_size(soft)}: no buffers are registered",
        "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
    )


def _ssd(directory: Path) -> Finding:
    existing = directory
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("SSD directory", Verdict.BAD, f"{existing} is not writable", "--ssd-dir DIR")
    free = shutil.disk_usage(existing).free
    kind = _file_system(existing)
    state = f"{directory}: {format_size(free)} free on {kind}"
    if kind in ("tmpfs", "overlay", "ramfs"):
        return Finding("SSD directory", Verdict.SLOW, state, "--ssd-dir DIR on a real disk")
    if free < _SSD_WANTED_BYTES:
        return Finding("SSD directory", Verdict.SLOW, state, "free some space, or --ssd-dir DIR")
    return Finding("SSD directory", Verdict.GOOD, state)


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
        importlib.import_module("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", Verdict.BAD, "not installed", "pip install torch")
    except (ImportError, OSError) as error:
        return Finding("torch", Verdict.BAD, f"{version}, but: {error}", "install torch anew")
    return Finding("torch", Verdict.GOOD, version)


def _torch_hooks() -> Finding:
    subject = "torch hooks"
    try:
        from memtide._torch_hooks.patching import patches
        from memtide._torch_hooks.patching.patch_row import OLDEST_TORCH
    except (ImportError, OSError, AttributeError) as error:
        return Finding(subject, Verdict.BAD, f"torch lacks what memtide uses: {error}", _NEWER)
    import torch

    version = patches.version_of(torch.__version__)
    if version < OLDEST_TORCH:
        return Finding(subject, Verdict.BAD, f"torch {torch.__version__} is too old", _NEWER)
    count, missing = len(patches.expected(version)), patches.missing()
    found = f"{count - len(missing)} of {count}"
    lost = [f"{patch}: {patch.absent or 'required'}" for patch in missing]
    if not missing:
        return Finding(subject, Verdict.GOOD, found)
    required = any(not patch.absent for patch in missing)
    verdict = Verdict.BAD if required else Verdict.SLOW
    return Finding(subject, verdict, "\n".join([f"{found}; off without", *lost]), _NEWER)


def _opens(number: int, *arguments: object) -> bool:
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if descriptor >= 0:
        os.close(descriptor)
    return bool(descriptor >= 0)


def _file_system(path: Path) -> str:
    best, kind = "", "unknown"
    for line in _read(Path("/proc/mounts")).splitlines():
        _device, mount, name, *_rest = line.split()
        resolved = str(path.resolve())
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(
            mount
        ) >= len(best):
            best, kind = mount, name
    return kind


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _first_number(path: Path) -> int:
    words = _read(path).split()
    return int(words[0]) if words else 0
