"""Parameters that no optimizer steps are copied once, in batches that ranks can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memtide._capi.client import Kind
from memtide._optimizer_step.partition import Batch, Geometry
from memtide._optimizer_step.unstepped_parameters import UnsteppedParameters
from memtide.errors import ResourceExhausted

_GEOMETRY = Geometry(base=0, chunk_bytes=100)


class Parameters:
    """Arenas of parameters, of which each place has 40 live bytes but for those in `empty`."""

    def __init__(self, places: Sequence[int], empty: Sequence[int] = ()) -> None:
        self.places = set(places)
        self._empty = empty
        self.storages = self

    def of(self, kind: Kind) -> Parameters:
        assert kind is Kind.PARAMETER
        return self

    def live(self) -> list[tuple[int, int]]:
        filled = sorted(self.places.difference(self._empty))
        return [(100 * place + 20, 100 * place + 60) for place in filled]


class Calls:
    """Records batches. `copied_places`: the most places of one."""

    geometry = _GEOMETRY
    depth = 3

    def __init__(self, copied_places: int = 2) -> None:
        self.copied_places = copied_places
        self.batches: list[Batch] = []
        self.has_room = True

    def make(self, batches: Sequence[Batch], shadows: Mapping[int, int]) -> int:
        if not self.has_room:
            raise ResourceExhausted("no room")
        assert {place for batch in batches for place in batch.writes} == set(shadows)
        self.batches += batches
        return 0


class Shadows:
    """Shadow chunks at a distance of 1000 places."""

    def of(self, kinds: dict[int, Kind]) -> dict[int, int]:
        assert set(kinds.values()) == {Kind.PARAMETER}
        return {place: place + 1000 for place in kinds}


def unstepped(parameters: Parameters, calls: Calls) -> tuple[UnsteppedParameters, list[set[int]]]:
    """With the places of each commit."""
    commits: list[set[int]] = []
    made = UnsteppedParameters(
        parameters,  # type: ignore[arg-type]
        calls,  # type: ignore[arg-type]
        Shadows(),  # type: ignore[arg-type]
        lambda shadows: commits.append(set(shadows)),
    )
    return made, commits


def test_what_a_step_leaves_alone_is_copied_whole() -> None:
    calls = Calls()
    shared, commits = unstepped(Parameters([0, 1, 2]), calls)
    shared.share({1})
    assert [(batch.writes, batch.copies) for batch in calls.batches] == [
        ({0, 2}, [(20, 60), (220, 260)])
    ]
    assert not any(batch.parts or batch.reads for batch in calls.batches)
    assert commits == [{0, 2}]


def test_a_place_is_shared_once() -> None:
    calls, parameters = Calls(), Parameters([0, 1])
    shared, commits = unstepped(parameters, calls)
    shared.share({1})
    parameters.places |= {5}
    shared.share(())
    assert commits == [{0}, {1, 5}]
    shared.share(())
    assert len(commits) == 2


def test_a_place_without_a_tensor_is_in_no_part() -> None:
    calls = Calls()
    shared, commits = unstepped(Parameters([0, 1, 2], empty=[1]), calls)
    shared.share(())
    assert commits == [{0, 2}]


def test_many_places_are_committed_in_turns() -> None:
    calls = Calls(copied_places=1)
    shared, commits = unstepped(Parameters(range(2 * calls.depth + 1)), calls)
    shared.share(())
    assert [len(batch.writes) for batch in calls.batches] == [1] * (2 * calls.depth + 1)
    assert [len(commit) for commit in commits] == [calls.depth, calls.depth, 1]


def test_without_room_each_rank_keeps_its_own() -> None:
    for calls in (Calls(copied_places=0), Calls()):
        calls.has_room = False
        shared, commits = unstepped(Parameters([0, 1]), calls)
        shared.share(())
        assert not commits
