"""The step from which a process goes on when it has opened a named job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memtide._daemon import training
from memtide._resume import named_job, resumed_step
from memtide._resume.named_job import NamedJob
from memtide._resume.step_manifest import SavedOptimizer, StepManifest
from memtide.errors import DataLoss, FailedPrecondition

_LARGE = 1 << 20


class Client:
    """A session of rank 1 of 2, whose rank has committed a manifest and left chunks 1 to 4."""

    rank, ranks = 1, 2
    properties = type("Properties", (), {"job_id": 7, "session_id": 20})
    limits = type("Limits", (), {"chunks_per_node": 100})

    def __init__(self, committed: bytes) -> None:
        self._committed = committed
        self.freed: list[int] = []

    def committed(self) -> tuple[int, bytes]:
        return 3, self._committed

    def attach(self, ids: list[int]) -> list[int]:
        return ids

    def free(self, ids: list[int], _count: int) -> None:
        self.freed += ids


@pytest.fixture(autouse=True)
def _listing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [{"chunk_id": str(n), "rank": 1} for n in range(1, 5)]
    listing = {
        "sessions": [
            # The daemon may see other pids than these processes do.
            {"session_id": "20", "pid": 1, "job_id": "7", "job_name": "one", "rank": 1, "ranks": 2},
            {"session_id": "21", "pid": os.getpid(), "job_id": "7", "job_name": "one", "ranks": 2},
        ],
        "chunks": [
            {"chunk_id": "90", "job_id": "7", "names": [{"chunk_id": "80"}, own[0]]},
            *({"chunk_id": name["chunk_id"], "job_id": "7", "names": [name]} for name in own[1:]),
            {"chunk_id": "99", "job_id": "8"},
        ],
    }
    monkeypatch.setattr(named_job.admin, "inspect_node", lambda *_, **__: listing)
    monkeypatch.setenv("MEMTIDE_TRAINING", "secret")
    monkeypatch.setattr(resumed_step, "_answer", None)
    monkeypatch.setattr(resumed_step, "_resumed_step", 0)


def opened(manifest: StepManifest | None, *, resume: bool) -> tuple[Client, NamedJob]:
    client = Client(manifest.to_bytes(_LARGE) if manifest is not None else b"")
    return client, NamedJob(client, Path(), "one", resume=resume)  # type: ignore[arg-type]


def committed(training_id: str = "", lost: str = "") -> StepManifest:
    return StepManifest([1, 3], [SavedOptimizer("SGD", 3, [])], lost, training_id)


def test_a_process_is_alone_in_its_job_or_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "ranks", 1)
    with pytest.raises(FailedPrecondition, match=f"process {os.getpid()} runs job 'one'"):
        opened(None, resume=False)
    monkeypatch.setattr(Client.properties, "job_id", 8)
    opened(None, resume=False)


def test_a_daemon_that_does_not_say_which_session_is_the_clients_still_tells_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Client, "ranks", 1)
    monkeypatch.setattr(Client.properties, "session_id", 0)
    with pytest.raises(FailedPrecondition, match="runs job 'one'"):
        opened(None, resume=False)


def test_a_rank_frees_its_own_chunks_that_its_last_commit_does_not_name() -> None:
    client, job = opened(committed(), resume=True)
    job.settle(job.manifest)
    assert client.freed == [2, 4]
    assert resumed_step.resumed_step() == 3


def test_without_resume_another_run_begins_anew() -> None:
    client, job = opened(committed("another run"), resume=False)
    assert job.manifest is None
    job.settle(None)
    assert client.freed == [1, 2, 3, 4]
    assert resumed_step.resumed_step() == 0


def test_ranks_that_are_started_anew_in_a_run_resume_by_themselves() -> None:
    _, job = opened(committed(training.own_id()), resume=False)
    assert job.is_wanted
    assert job.manifest == committed(training.own_id())


def test_what_another_node_has_is_in_none_of_these_chunks() -> None:
    client, job = opened(committed(), resume=True)
    job.settle(committed(), is_here=False)
    assert client.freed == [1, 2, 3, 4]
    assert resumed_step.resumed_step() == 3


def test_a_script_that_has_got_another_step_is_not_gone_on_with() -> None:
    _, job = opened(committed(), resume=True)
    assert resumed_step.resumed_step() == 0
    with pytest.raises(FailedPrecondition, match="has committed 0 steps, and all go on from step"):
        job.settle(job.manifest)


def test_a_lost_step_is_an_error_only_where_it_is_wanted() -> None:
    _, job = opened(committed(lost="too long"), resume=True)
    with pytest.raises(FailedPrecondition, match="job 'one' cannot be resumed: too long"):
        _ = job.manifest
    _, anew = opened(committed(lost="too long"), resume=False)
    assert anew.manifest is None


def test_bytes_that_are_no_manifest_are_an_error_only_where_it_is_wanted() -> None:
    with pytest.raises(DataLoss):
        NamedJob(Client(b"?"), Path(), "one", resume=True)  # type: ignore[arg-type]
    anew = NamedJob(Client(b"?"), Path(), "one", resume=False)  # type: ignore[arg-type]
    assert anew.manifest is None


def test_a_job_of_one_of_a_group_frees_all_that_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a group on devices have a job each, which names its chunks for no rank."""
    chunks = [{"chunk_id": "5", "job_id": "7", "names": [{"chunk_id": "5"}]}]
    monkeypatch.setattr(named_job.admin, "inspect_node", lambda *_, **__: {"chunks": chunks})
    monkeypatch.setattr(Client, "ranks", 1)
    client, job = opened(None, resume=False)
    job.settle(None)
    assert client.freed == [5]
