"""Fixtures of these tests, beside those of all tests in Python."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import zlib
from collections.abc import Iterator

import pytest
from fake_device import environment
from memtide._util import devices
from recording_gpu import RecordingGpu


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and tests would inherit it,
    with the programs that they interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _freeze() -> None:
    """Many tests collect garbage. Modules that are imported by now are not looked through each
    time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def cpu_as_gpu() -> Iterator[RecordingGpu]:
    """Manages torch's CPU as a GPU, so that what memtide does only there runs without one."""
    module = RecordingGpu()
    end = devices.register("cpu", 1, module)
    yield module
    end()


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs the test with the daemon and the client for a fake GPU of 256 MiB (base/cuda/fake). One
    half of the tests, chosen by name, is as users have it, with mappings that are kept (decision
    56); in the other half a write to a chunk that is leased for reading ends the process."""
    daemon, library = (
        os.environ.get(name) for name in ("MEMTIDED_FAKE_CUDA", "MEMTIDE_LIBRARY_FAKE_CUDA")
    )
    if not daemon or not library:
        # The fake implements functions that cuda.h declares, and is compiled against this header.
        # The build has it only from a toolkit (bazel/cuda_configure.bzl).
        pytest.skip("built without the CUDA toolkit")
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as directory:
        monkeypatch.setenv("MEMTIDED", daemon)
        monkeypatch.setenv("MEMTIDE_LIBRARY", library)
        monkeypatch.delenv("MEMTIDE_PROTECT", raising=False)
        if zlib.crc32(request.node.nodeid.encode()) % 2:
            monkeypatch.setenv("MEMTIDE_PROTECT", "1")
        monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"dir={directory},memory=256MiB,delay_us=50")
        yield


@pytest.fixture
def fake_device(gpu: None) -> dict[str, str]:
    """The environment of a process that has torch's device over the fake CUDA (tests/fake_device),
    on the GPU of `gpu`."""
    del gpu
    cuda = f"{os.environ['MEMTIDE_FAKE_CUDA']},tensors=backend"
    return {**environment(), "MEMTIDE_FAKE_CUDA": cuda}
