"""The daemon of the load test: with a disk, cgroups and a service manager of its own, and what it
uses."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from limited_cgroup import LimitedCgroup, NoCgroup, limited_cgroup
from service_manager import ServiceManager
from sessions import LEASE_S

MIB = 1 << 20
# An elastic share is guaranteed a part of what is free when its job opens. All fixed shares fit
# beside that, whatever the order, so that no session is refused for what another user has.
HOST_POOL = 1408 * MIB
SSD_POOL = 1408 * MIB
DISK = SSD_POOL + 256 * MIB
# Memory of the cgroup beside the host pool; the daemon's own memory is a small part of it.
BESIDE_POOL = 512 * MIB
RESERVE = 128 * MIB
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Usage:
    """The daemon's use of the machine, and of its pools."""

    anonymous_kib: int
    shared_kib: int
    threads: int
    descriptors: int
    files: int  # In the SSD directory, with those that are deleted and open.
    disk_kib: int
    lent_bytes: int  # The sum over all pools.
    sessions: int
    chunks: int
    waiting_calls: int


@dataclass
class Metrics:
    """One scrape."""

    values: dict[str, float]

    def sum(self, name: str, *labels: str) -> float:
        """All values of a metric whose labels contain each of `labels`."""
        return sum(
            value
            for key, value in self.values.items()
            if re.split(r"[{ ]", key)[0] == name and all(label in key for label in labels)
        )

    def buckets(self) -> list[tuple[float, float]]:
        """The bounds of the fetches without a wait, in seconds, and how many took no longer."""
        found = [
            (float(bound.group(1)), value)
            for key, value in self.values.items()
            if (bound := re.match(r'memtide_fetch_hit_seconds_bucket\{le="([^"]+)"\}', key))
        ]
        return sorted(found)


class Node:
    """A daemon, and how to disturb it. `skipped` says which faults this machine does not permit."""

    def __init__(
        self, home: Path, disk: Path | None, group: LimitedCgroup | None, cpus: set[int]
    ) -> None:
        self.home = home
        self.disk = disk
        self.group = group
        self._cpus = cpus
        self.skipped: dict[str, str] = {}
        self._log = (home / "log").open("wb")
        store = (disk or home) / "store"
        store.mkdir(mode=0o700)
        self.store = store
        flags = [
            "--device=none",
            f"--host-pool={HOST_POOL}",
            f"--host-reserve={RESERVE}",
            f"--ssd-dir={store}",
            f"--ssd-pool={SSD_POOL}",
            "--metrics-address=127.0.0.1:0",
            f"--session-lease={LEASE_S}s",
        ]
        self.manager = ServiceManager(home / "s", flags, self._log.fileno())

    def start(self) -> None:
        """Starts the daemon in its cgroup, as its service manager does, on all CPUs."""
        own, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
        os.sched_setaffinity(0, self._cpus)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        with _inside(self.group.path) if self.group else contextlib.nullcontext():
            self.manager.start()
        os.sched_setaffinity(0, own)
        os.setpriority(os.PRIO_PROCESS, 0, nice)

    def restart(self) -> None:
        """Kills the daemon, and starts the next one with what the service manager holds."""
        self.manager.kill()
        self.start()

    def close(self) -> None:
        self.manager.close()
        self._log.close()

    def log_tail(self) -> str:
        """The last lines of the daemons' log."""
        return "\n".join((self.home / "log").read_text(errors="replace").splitlines()[-20:])

    def metrics(self) -> Metrics:
        """Scrapes the daemon, which may have started just now, or have few descriptors."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                address = (self.home / "s" / "metrics_address").read_text().strip()
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=2) as reply:
                    lines = reply.read().decode().splitlines()
                pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
                metrics = Metrics({key: float(value) for key, value in pairs})
                if "memtide_sessions" in metrics.values:
                    return metrics
            except OSError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError("the daemon's metrics are empty: its loop does not answer")
            time.sleep(0.2)

    def usage(self) -> Usage:
        """The daemon's usage now."""
        process = Path("/proc") / str(self.manager.pid)
        status = dict(
            line.split(":", 1) for line in (process / "status").read_text().splitlines() if line
        )
        targets = []
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # It is closed meanwhile.
                targets.append(str(descriptor.readlink()))
        space = os.statvfs(self.store)
        metrics = self.metrics()
        return Usage(
            anonymous_kib=int(status["RssAnon"].split()[0]),
            shared_kib=_shared_kib(process / "smaps"),
            threads=int(status["Threads"]),
            descriptors=len(targets),
            files=len(list(self.store.iterdir()))
            + sum(target.startswith(str(self.store)) for target in targets),
            disk_kib=(space.f_blocks - space.f_bfree) * space.f_frsize // 1024 if self.disk else 0,
            lent_bytes=int(
                metrics.sum("memtide_pool_bytes") - metrics.sum("memtide_pool_bytes", '"free"')
            ),
            sessions=int(metrics.sum("memtide_sessions")),
            chunks=int(metrics.sum("memtide_chunks")),
            waiting_calls=int(metrics.sum("memtide_waiting_calls")),
        )


def _shared_kib(smaps: Path) -> int:
    """The memory of its mapped regions. RssShmem in its status is off by hundreds of pages."""
    total, is_region = 0, False
    for line in smaps.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_region = "/memfd:memtide-host-" in line  # And not the journal, which stays.
        elif is_region and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@contextlib.contextmanager
def _inside(group: Path) -> Iterator[None]:
    """Within it, processes that are started are in the cgroup."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    is_v1 = (group / "memory.limit_in_bytes").exists()
    own = next(g for _, c, g in (line.split(":", 2) for line in lines) if c == "memory" * is_v1)
    mount = Path("/sys/fs/cgroup/memory" if is_v1 else "/sys/fs/cgroup")
    (group / "cgroup.procs").write_text("0")
    try:
        yield
    finally:
        (mount / own.lstrip("/") / "cgroup.procs").write_text("0")


@contextlib.contextmanager
def _small_disk(home: Path) -> Iterator[Path]:
    """A file system of its own, of a limited size. OSError: none can be made here."""
    image, mounted = home / "image", home / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK)
    for command in (
        ["mkfs.ext4", "-q", "-m", "0", "-F", str(image)],
        ["mount", "-o", "loop", str(image), str(mounted)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{command[0]}: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=False)


@contextlib.contextmanager
def running_node(home: Path, group_id: int, cpus: set[int]) -> Iterator[Node]:
    """A node whose daemon listens in home/s, for the members of the group."""
    skipped = {}
    with contextlib.ExitStack() as stack:
        disk = group = None
        try:
            disk = stack.enter_context(_small_disk(home))
        except OSError as error:
            skipped["full disk"] = skipped["slow disk"] = f"no file system can be mounted: {error}"
        try:
            group = stack.enter_context(limited_cgroup(HOST_POOL + BESIDE_POOL))
        except NoCgroup as error:
            skipped["memory pressure"] = str(error)
        (home / "s").mkdir(mode=0o750)
        os.chown(home / "s", 0, group_id)
        node = Node(home, disk, group, cpus)
        node.skipped.update(skipped)
        try:
            node.start()
            yield node
        finally:
            node.close()


@dataclass
class Baseline:
    """The daemon's usage when all sessions had ended, for comparisons with later."""

    usage: Usage
    # Freed memory that malloc keeps, for each of the daemon's threads, differs from time to time.
    anonymous_slack_kib: int = field(default=48 << 10)

    def leaks(self, later: Usage) -> list[str]:
        """The resources that are in use later, and were not in use then."""
        found = []
        for name, slack in (
            ("anonymous_kib", self.anonymous_slack_kib),
            ("shared_kib", 0),
            ("descriptors", 0),
            ("files", 0),
            ("disk_kib", 64),  # Directory blocks and the file system's own.
            ("lent_bytes", 0),
            ("sessions", 0),
            ("chunks", 0),
            ("waiting_calls", 0),
        ):
            before, after = getattr(self.usage, name), getattr(later, name)
            if after > before + slack:
                found.append(f"{name}: {after}, {before} before")
        return found


def settled_usage(node: Node, baseline: Baseline | None, patience_s: float) -> Usage:
    """The daemon's usage once jobs have ended: when nothing leaks, or at the end of patience.
    Without a baseline, when it uses no less than a moment ago: closed connections are seen a little
    later."""
    deadline = time.monotonic() + patience_s
    before = node.usage()
    while True:
        time.sleep(0.3)
        usage = node.usage()
        lent = usage.lent_bytes or usage.sessions or usage.chunks
        least = Baseline(usage) if baseline is None else baseline
        settled = not least.leaks(before if baseline is None else usage)
        if time.monotonic() > deadline or (not lent and settled):
            return usage
        before = usage
