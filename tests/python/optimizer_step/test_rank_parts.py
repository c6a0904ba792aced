"""A rank computes a part, or has it from another rank, by each answer that the daemon has."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._capi.content_hash import hash_pieces
from memtide._capi.shared_part import PartDifference, PartState, SharedPart
from memtide._daemon.training import Training
from memtide._optimizer_step.part_contents import PartContents
from memtide._optimizer_step.partition import Batch, Geometry
from memtide._optimizer_step.rank_parts import RankParts
from memtide.errors import DeadlineExceeded, Unavailable
from rank_batches import GRADIENTS, adam_options, batch_at

_TRAINING = Training("secret", rank=1, ranks=2, socket_dir=Path("/nowhere"))
_SHADOWS = {2: 12, 3: 13, 4: 14}
_NEEDS = PartState.NEEDS_DIGESTS
_DIFFERENCE = PartDifference(0, work=False, reads=(0,))


class AnsweringClient(FakeClient):
    """Answers each start of a shared part with the next one of `answers`: a part that this rank is
    to compute has the addresses of chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.allocate(Kind.OTHER, 20)
        self.answers: list[SharedPart] = []
        self.requests: list[tuple[list[int], list[int], bytes, list[bytes]]] = []
        self.ended: list[tuple[int, bool]] = []
        self.fails_to_end: Exception | None = None

    def start_shared_part(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        work_digest: bytes,
        read_digests: Sequence[bytes] = (),
    ) -> SharedPart:
        self.requests.append((list(reads), list(writes), work_digest, list(read_digests)))
        answer = self.answers.pop(0)
        if answer.state is not PartState.COMPUTING:
            return answer
        number, addresses = self.start_part(reads, writes)
        return replace(answer, number=number, addresses=tuple(addresses))

    def end_part(self, part: int, *, computed: bool, non_finite: int = 0) -> None:
        self.ended.append((part, computed))
        if self.fails_to_end is not None:
            raise self.fails_to_end
        super().end_part(part, computed=computed, non_finite=non_finite)


class Rank:
    """A rank with its client, and a batch."""

    def __init__(self, *answers: SharedPart) -> None:
        self.client = AnsweringClient()
        self.client.answers = list(answers)
        properties = self.client.properties
        self.geometry = Geometry(properties.base, properties.chunk_bytes)
        self.batch = batch_at(properties.base, adam_options())[0]
        self.parts = RankParts(self.client, self.geometry, _TRAINING)  # type: ignore[arg-type]

    def digests_asked(self) -> list[list[bool]]:
        """For each call, of which chunks it had digests."""
        return [[bool(digest) for digest in request[3]] for request in self.client.requests]

    def assert_all_parts_have_ended(self) -> None:
        assert not self.client._open
        assert len(self.client.ended) == len(self.client.parts)


def part(state: PartState, **more: Any) -> SharedPart:
    return SharedPart(state, **more)


def test_a_part_that_another_rank_made_is_not_computed() -> None:
    rank = Rank(part(PartState.MADE))
    with rank.parts.lent(rank.batch, _SHADOWS) as chunks:
        assert chunks is None
    assert (rank.parts.made_here, rank.parts.made_elsewhere) == (0, 1)
    ((reads, writes, _, _),) = rank.client.requests
    assert (reads, writes) == ([GRADIENTS, 2, 3, 4], [12, 13, 14])
    # The part in which gradients were read for their digests.
    assert rank.client.parts == [([GRADIENTS], [])]
    rank.assert_all_parts_have_ended()
    assert rank.client.ended[0][1] is False


def test_a_part_of_this_rank_is_computed_into_the_shadow_chunks() -> None:
    rank = Rank(part(PartState.COMPUTING))
    with rank.parts.lent(rank.batch, _SHADOWS) as chunks:
        assert chunks is not None
        assert list(chunks) == [GRADIENTS, 2, 3, 4, 12, 13, 14]
        ctypes.memset(chunks[13], 0x5A, 8)
    assert (rank.parts.made_here, rank.parts.made_elsewhere) == (1, 0)
    assert rank.client.ended[-1][1] is True
    assert ctypes.string_at(rank.geometry.chunk(13)[0], 8) == b"\x5a" * 8
    rank.assert_all_parts_have_ended()


def test_only_gradients_have_digests_before_the_daemon_asks_for_more() -> None:
    rank = Rank(part(_NEEDS, unknown_reads=(1, 3)), part(PartState.MADE))
    with rank.parts.lent(rank.batch, _SHADOWS):
        pass
    assert rank.digests_asked() == [[True, False, False, False], [True, True, False, True]]
    assert [reads for reads, _ in rank.client.parts] == [[GRADIENTS], [2, 4]]
    first, second = rank.client.requests
    assert first[2] == second[2]
    assert first[3][0] == second[3][0]
    rank.assert_all_parts_have_ended()


def test_digests_are_of_what_is_read_and_of_nothing_else() -> None:
    def digest_after(write: int) -> bytes:
        rank = Rank(part(PartState.MADE))
        start = rank.geometry.chunk(GRADIENTS)[0]
        ctypes.memset(start, 1, 4096)
        ctypes.memset(start + write, 2, 1)
        with rank.parts.lent(rank.batch, _SHADOWS):
            pass
        pieces = [(start, 512)]
        assert rank.client.requests[0][3][0] == hash_pieces(_TRAINING.hash_secret, pieces)
        return rank.client.requests[0][3][0]

    beside, inside = digest_after(512), digest_after(511)
    assert beside != inside
    assert digest_after(513) == beside


def test_a_difference_is_passed_on_before_the_part_is_computed() -> None:
    rank = Rank(part(PartState.COMPUTING, difference=_DIFFERENCE))
    seen: list[PartDifference] = []

    def differs(batch: Batch, contents: PartContents, difference: PartDifference) -> None:
        assert batch is rank.batch
        assert contents.reads[difference.reads[0]] == GRADIENTS
        seen.append(difference)

    rank.parts.on_difference = differs
    with rank.parts.lent(rank.batch, _SHADOWS) as chunks:
        assert chunks is not None
        assert seen == [_DIFFERENCE]
    assert rank.parts.made_here == 1


def test_without_a_difference_nothing_is_said() -> None:
    rank = Rank(part(PartState.COMPUTING))
    rank.parts.on_difference = lambda *_: pytest.fail("no difference")
    with rank.parts.lent(rank.batch, _SHADOWS):
        pass


@pytest.mark.parametrize("lost", [None, Unavailable("the session is lost")])
def test_a_part_that_failed_ends_uncomputed_with_its_own_error(lost: Exception | None) -> None:
    rank = Rank(part(PartState.COMPUTING))
    with (
        pytest.raises(ZeroDivisionError),
        rank.parts.lent(rank.batch, _SHADOWS) as chunks,
    ):
        assert chunks is not None
        ctypes.memset(chunks[13], 0x5A, 8)
        rank.client.fails_to_end = lost
        raise ZeroDivisionError
    assert rank.client.ended[-1][1] is False
    assert rank.parts.made_here == 0
    assert ctypes.string_at(rank.geometry.chunk(13)[0], 8) != b"\x5a" * 8


def test_the_part_of_digests_ends_even_if_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise DeadlineExceeded("a page fault")

    rank = Rank()
    monkeypatch.setattr("memtide._optimizer_step.rank_parts.hash_pieces", fails)
    with pytest.raises(DeadlineExceeded), rank.parts.lent(rank.batch, _SHADOWS):
        pass
    assert rank.client.requests == []
    rank.assert_all_parts_have_ended()


def test_a_part_is_not_shared_if_another_one_writes_its_chunks() -> None:
    rank = Rank()
    assert not rank.parts.can_share(replace(rank.batch, is_apart=False))
