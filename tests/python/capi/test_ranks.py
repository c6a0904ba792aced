"""The rank of a session, of a job or of a group that has a job for each."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from memtide._capi import client, library


@pytest.mark.parametrize(
    ("options", "rank", "ranks", "has_others"),
    [
        ({}, 0, 1, False),
        ({"rank": 2, "ranks": 4}, 2, 4, True),
        ({"group_rank": 2, "group_ranks": 4}, 2, 1, True),
    ],
    ids=["alone", "of a job", "of a group"],
)
def test_a_session_knows_its_rank(
    options: dict[str, int],
    rank: int,
    ranks: int,
    has_others: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = MagicMock()  # Each call of the library ends well, and its results are zeros.
    for name in ("memtide_open", "memtide_get_properties", "memtide_get_limits"):
        getattr(calls, name).return_value = 0
    monkeypatch.setattr(client, "load_library", lambda: calls)
    opened = client.Client(library.Options(**options))
    assert (opened.rank, opened.ranks, opened.has_other_ranks) == (rank, ranks, has_others)
