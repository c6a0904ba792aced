"""Several daemons on one GPU: who has memory of it, and what a daemon says that is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import short_directory
from memtide._capi.locate import find_daemon
from memtide._cli import doctor
from memtide._daemon import gpus
from memtide._daemon.connect import SessionRequest, find_or_start
from memtide._daemon.private_daemon import Pools, PrivateDaemon, answers
from memtide.errors import Unavailable

pytestmark = pytest.mark.usefixtures("gpu")
POOLS = Pools(device="cuda", device_bytes=20 << 20, host_bytes=32 << 20, ssd_bytes=0)

Start = Callable[[], PrivateDaemon]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts private daemons, which end with the test."""
    with contextlib.ExitStack() as daemons:

        def start() -> PrivateDaemon:
            daemon = PrivateDaemon.start(POOLS)
            daemons.callback(daemon.stop)
            return daemon

        yield start


@pytest.fixture
def service() -> Iterator[Path]:
    """The sockets of a service that has the GPU."""
    with short_directory() as home:
        flags = ["--device=cuda", "--device-pool=20MiB", "--host-pool=32MiB", "--no-ssd"]
        flags += [f"--socket-dir={home}", "--metrics-address=off"]
        with subprocess.Popen([find_daemon(), *flags], stderr=subprocess.DEVNULL) as daemon:
            while not answers(home):
                assert daemon.poll() is None, "the daemon does not start"
            yield home
            daemon.terminate()


def test_the_doctor_says_which_daemons_have_memory_of_a_gpu(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "driver").write_text("NVRM version: 580.65.06\n")
    monkeypatch.setattr(doctor, "_NVIDIA_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(doctor, "_NVIDIA_UVM", tmp_path / "driver")
    assert "memtided of uid" not in doctor._gpu().state
    daemons = [start(), start()]
    state = doctor._gpu().state
    for daemon in daemons:
        line = (
            f"a private memtided of uid {os.geteuid()}, pid {daemon.process.pid}, which has 20 MiB "
            f"of it, with sockets in {daemon.socket_dir}"
        )
        assert line in state
    daemons[0].process.kill()
    daemons[0].process.wait()
    assert f"pid {daemons[0].process.pid}," not in doctor._gpu().state


def test_the_daemons_of_a_gpu_do_not_count_as_gpus(start: Start) -> None:
    start()
    assert gpus.count_gpus() == 1


def test_a_private_daemon_where_a_service_has_the_gpu_is_refused_with_the_remedy(
    service: Path,
) -> None:
    with pytest.raises(Unavailable, match="belongs to the service memtided") as raised:
        find_or_start(SessionRequest(pools=POOLS))
    assert f"with sockets in {service}" in str(raised.value)
    assert "`memtide run` without pools or a budget" in str(raised.value)
    # The remedy does work.
    assert find_or_start(SessionRequest(socket_dir=service)) == (service, None)
