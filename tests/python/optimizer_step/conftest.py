"""Fixtures that say what computes the parts of steps."""

from __future__ import annotations

import pytest
from memtide._optimizer_step import executor
from memtide._optimizer_step.offloaded_step import OffloadedSteps


@pytest.fixture
def by_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's kernels compute steps, as those of a named job on a GPU, on whose chunks a test
    cannot look; but in place while everything fits."""
    monkeypatch.setattr(executor, "TorchKernels", lambda *_: None)
    monkeypatch.setattr(
        OffloadedSteps,
        "_prefers_parts",
        lambda steps: (
            steps.always or steps.calls.count_non_finite or steps._memory.pressure.overflows()
        ),
    )


@pytest.fixture(params=["torch", "daemon"])
def by_either(request: pytest.FixtureRequest) -> str:
    """A test runs twice: torch's functions compute the steps, and the daemon's kernels do."""
    if request.param == "daemon":
        request.getfixturevalue("by_the_daemon")
    return str(request.param)
