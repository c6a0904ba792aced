"""Two nodes on one machine: network namespaces with a cable between them, and a daemon in each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cli, short_directory
from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import answers

_PORT = 29_400


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Node:
    """One of the nodes. Its daemon and its processes are gone when it is lost."""

    def __init__(self, number: int, home: Path, ssd_dir: Path) -> None:
        self.name = f"mt{os.getpid()}n{number}"
        self.number = number
        self.address = f"10.213.0.{number + 1}"
        self.home = home
        self._ssd_dir = ssd_dir
        self._inside = ["ip", "netns", "exec", self.name]

    def start_daemon(self) -> None:
        """Starts the node's daemon, and returns when it answers."""
        flags = [f"--socket-dir={self.home}", f"--ssd-dir={self._ssd_dir}", "--ssd-pool=1GiB"]
        flags += ["--host-pool=384MiB", "--no-host-reserve", "--device=none"]
        command = [*self._inside, str(find_daemon()), *flags, "--metrics-address=off"]
        daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not answers(self.home):
            assert daemon.poll() is None, "the daemon does not start"

    def run(
        self, cli: Cli, ranks: int, *script: object, options: tuple[str, ...] = (), **more: object
    ) -> subprocess.Popen[str]:
        """`memtide run --job one torchrun ...` for this node's ranks; returns at once."""
        torchrun = ["torchrun", "--nnodes=2", f"--nproc-per-node={ranks}", "--max-restarts=2"]
        torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint=10.213.0.1:{_PORT}", "--rdzv-id=one"]
        torchrun += [f"--local-addr={self.address}", "--monitor-interval=0.1"]
        torchrun += [f"--rdzv-conf=is_host={int(self.number == 0)},join_timeout=120"]
        memtide = ["-m", "memtide", "run", f"--socket-dir={self.home}", "--job=one", *options]
        more["GLOO_SOCKET_IFNAME"] = self.name
        return cli.start_python(
            *memtide, "--chunk-size=2MiB", *torchrun, *script, inside=self._inside, **more
        )

    def lose(self) -> None:
        """Kills all processes of the node."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True
        )
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(self._ssd_dir, ignore_errors=True)


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Two nodes with daemons; skips the test where the machine permits no network namespaces."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(2):
            home = stack.enter_context(short_directory())
            nodes.append(Node(number, home, folder / f"ssd{number}"))
        names = [node.name for node in nodes]
        try:
            for name in names:
                _ip("netns", "add", name)
                stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            _ip(
                *("link", "add", names[0], "netns", names[0], "type", "veth"),
                *("peer", "name", names[1], "netns", names[1]),
            )
            for node in nodes:
                _ip("-n", node.name, "addr", "add", f"{node.address}/24", "dev", node.name)
                _ip("-n", node.name, "link", "set", node.name, "up")
                _ip("-n", node.name, "link", "set", "lo", "up")
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        for node in nodes:
            stack.callback(node.lose)
            node.start_daemon()
        yield nodes
