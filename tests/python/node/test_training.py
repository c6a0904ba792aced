"""The ranks of one training find the same job and the same secret; others find neither."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

import pytest
from memtide._capi.content_hash import LEAST_SECRET_BYTES
from memtide._node import training
from memtide._node.training import Training


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTIDE_TRAINING", "")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Gives the ranks another secret with each call."""
    return lambda: monkeypatch.setenv("MEMTIDE_TRAINING", secrets.token_hex(24))


def announced(rank: int = 0, ranks: int = 2) -> Training:
    found = training.of_rank(rank, ranks)
    assert found is not None
    return found


def test_ranks_of_one_launcher_have_one_job_and_one_secret(announce: Callable[[], None]) -> None:
    announce()
    first, second = announced(0), announced(1)
    assert (first.job_name, first.hash_secret) == (second.job_name, second.hash_secret)
    assert (second.rank, second.ranks) == (1, 2)


def test_each_launcher_s_ranks_have_a_job_of_their_own(announce: Callable[[], None]) -> None:
    announce()
    before = announced()
    announce()
    assert announced().job_name != before.job_name
    assert announced().hash_secret != before.hash_secret


def test_restarted_ranks_have_another_job(
    announce: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    announce()
    before = announced()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert announced() == before
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert announced().job_name != before.job_name
    assert announced().hash_secret != before.hash_secret


def test_a_job_s_name_does_not_have_the_secret_in_it(announce: Callable[[], None]) -> None:
    announce()
    one = announced()
    assert one.secret
    assert one.secret[:8] not in one.job_name
    assert os.environ["MEMTIDE_TRAINING"] not in one.job_name
    assert len(one.hash_secret) >= LEAST_SECRET_BYTES


def test_a_process_alone_is_in_no_training(announce: Callable[[], None]) -> None:
    assert training.of_rank(0, 2) is None, "it has no secret"
    announce()
    assert training.of_rank(0, 1) is None
