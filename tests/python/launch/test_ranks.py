"""Which rank a process is, as launchers say it."""

from __future__ import annotations

import pytest
from memtide._launch import ranks
from memtide._launch.ranks import Rank

_VARIABLES = (*("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK"),)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, Rank(0, 0, 1)),
        ({"RANK": "3"}, Rank(3, 0, 1)),
        # torchrun, and Ray Train
        (
            {"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"},
            Rank(5, 1, 4),
        ),
        # DeepSpeed
        ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "WORLD_SIZE": "8"}, Rank(5, 1, 4)),
        # Lightning's ddp
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, Rank(1, 1, 2)),
        ({"LOCAL_RANK": "2", "WORLD_SIZE": "2"}, Rank(0, 0, 1)),
        ({"LOCAL_RANK": "1"}, Rank(0, 0, 1)),
    ],
)
def test_variables_of_launchers_say_the_rank(
    variables: dict[str, str], rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks.of_this_process() == rank


def test_what_spawn_has_started_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "spawned", Rank(1, 1, 3))
    assert ranks.of_this_process() == Rank(1, 1, 3)
