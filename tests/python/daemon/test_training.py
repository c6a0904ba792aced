"""The ranks of one training find the same job and the same secret; others find neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from memtide._capi import admin
from memtide._capi.content_hash import LEAST_SECRET_BYTES
from memtide._daemon import training
from memtide._daemon.training import Training


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTIDE_TRAINING", "")  # Values that the test sets are undone.
    monkeypatch.delenv("MEMTIDE_TRAINING")
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def of_rank(rank: int = 0, ranks: int = 2) -> Training:
    found = training.of_rank(rank, ranks, Path("/nowhere"))
    assert found is not None
    return found


def test_ranks_of_one_launcher_have_one_job_and_one_secret() -> None:
    training.announce()
    first, second = of_rank(0), of_rank(1)
    assert (first.job_name, first.hash_secret) == (second.job_name, second.hash_secret)
    assert (second.rank, second.ranks) == (1, 2)


def test_a_run_inside_another_one_keeps_its_secret() -> None:
    training.announce()
    before = of_rank()
    training.announce()
    assert of_rank() == before


@pytest.mark.parametrize(
    "name", ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"]
)
def test_each_training_of_a_run_has_a_job_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.announce()
    trainings = [of_rank()]
    for value in ("1", "2"):
        monkeypatch.setenv(name, value)
        trainings.append(of_rank())
    assert len({each.job_name for each in trainings}) == 3
    assert len({each.hash_secret for each in trainings}) == 3


def test_ranks_that_are_started_in_a_block_have_a_job_of_their_own() -> None:
    training.announce()
    before = of_rank()
    with training.announced():
        inside = of_rank()
    with training.announced():
        assert len({before.job_name, inside.job_name, of_rank().job_name}) == 3
    assert of_rank() == before


def test_a_block_without_a_training_around_it_leaves_none() -> None:
    with training.announced():
        assert of_rank().secret
    assert "MEMTIDE_TRAINING" not in os.environ


def test_a_job_s_name_does_not_have_the_secret_in_it() -> None:
    training.announce()
    one = of_rank()
    assert one.secret[:8] not in one.job_name
    assert os.environ["MEMTIDE_TRAINING"] not in one.job_name
    assert len(one.hash_secret) >= LEAST_SECRET_BYTES


def test_a_process_alone_is_in_no_training() -> None:
    assert training.of_rank(0, 2, Path()) is None, "it has no secret"
    training.announce()
    assert training.of_rank(0, 1, Path()) is None


@pytest.mark.parametrize(("rank", "shares"), [(0, True), (1, False)])
def test_a_rank_knows_whether_others_have_what_it_has(
    rank: int, *, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(job: str, rank: int, shared: int) -> dict[str, Any]:
        return {"job_id": job, "rank": rank, "rank_use": {"shared_bytes": shared}}

    sessions = [
        session("1", rank, 8 if shares else 0),
        session("1", 1 - rank, 8),
        session("2", rank, 8),  # Another training's.
        {"pid": os.getpid(), "job_id": "3"},
    ]
    monkeypatch.setattr(admin, "inspect_node", lambda *_, **__: {"sessions": sessions})
    training.announce()
    assert of_rank(rank).shares_contents(1) == shares
