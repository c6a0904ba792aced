"""Fixtures that say what computes the parts of steps."""

from __future__ import annotations

import pytest
from memtide._optimizer_step import executor


@pytest.fixture
def by_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's kernels compute all steps, as with a GPU, on whose chunks a test cannot look."""
    monkeypatch.setattr(executor, "TorchKernels", lambda *_: None)


@pytest.fixture(params=["torch", "daemon"])
def by_either(request: pytest.FixtureRequest) -> str:
    """A test runs twice: torch's functions compute the steps, and the daemon's kernels do."""
    if request.param == "daemon":
        request.getfixturevalue("by_the_daemon")
    return str(request.param)
