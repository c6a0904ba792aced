"""Parts of several ranks through the C interface: with a daemon, and with each answer it has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from memtide._capi import library
from memtide._capi.client import Access, Client, Kind, Places
from memtide._capi.library import Options
from memtide._capi.optimizer_step import Steps
from memtide._capi.shared_part import PartDifference, PartState, SharedPart
from memtide._daemon.private_daemon import Pools, PrivateDaemon
from memtide.errors import InvalidArgument, NotFound

WORK = b"the digest: work"
READ = b"\0ther digest: r\0"
MIB = 1 << 20

Join = Callable[[int, int], Client]


@pytest.fixture
def join() -> Iterator[Join]:
    """Opens a session of one job: the rank, and the number of ranks."""
    with ExitStack() as ends:
        daemon = PrivateDaemon.start(Pools(host_bytes=64 * MIB, device="none"))
        ends.callback(daemon.stop)

        def opened(rank: int, ranks: int) -> Client:
            options = Options(
                str(daemon.socket_dir),
                job_name="training",
                rank=rank,
                ranks=ranks,
                chunk_bytes=2 * MIB,
            )
            client = Client(options)
            ends.callback(client.close)
            return client

        yield opened


def test_a_part_of_one_rank_is_computed_by_it(join: Join) -> None:
    client = join(0, 1)
    first = client.allocate(Kind.OTHER, 2)
    part = client.start_shared_part([first], [first + 1], WORK, [READ])
    assert part.state is PartState.COMPUTING
    assert len(part.addresses) == 2
    assert (part.unknown_reads, part.difference) == ((), None)
    ctypes.memset(part.addresses[1], 0x5A, client.properties.chunk_bytes)
    client.end_part(part.number, computed=True)
    written = Places([first + 1])
    client.acquire(written, Access.READ)
    base = client.properties.base + (first + 1) * client.properties.chunk_bytes
    assert ctypes.string_at(base, 8) == b"\x5a" * 8
    client.release(written)


def test_ranks_that_no_training_can_have_are_refused(join: Join) -> None:
    with pytest.raises(InvalidArgument, match="rank: 2; must be less than ranks, 2"):
        join(2, 2)


@dataclass
class Library:
    """Replaces libmemtide.so: `answer` fills in what the daemon says of the next part."""

    answer: Callable[[library.SharedPart], None]
    contents: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def memtide_start_shared_part(
        self, client: Any, places: int, count: int, reads: int, contents: Any, part: Any
    ) -> int:
        struct = contents._obj
        # Digests may have zeros, at which a c_char_p ends.
        table = ctypes.c_void_p.from_buffer(struct, type(struct).read_digests.offset).value
        digests = ctypes.string_at(table, reads * library.DIGEST_BYTES) if table else None
        self.contents.append((bytes(struct.work_digest), digests))
        self.answer(part._obj)
        return 0


def steps_of(answer: Callable[[library.SharedPart], None]) -> tuple[Steps, Library]:
    steps, recorder = Steps(), Library(answer)
    steps._lib = recorder  # type: ignore[assignment]
    steps._handle = ctypes.c_void_p()
    return steps, recorder


def write(array: int, *numbers: int) -> int:
    """Writes 32-bit numbers to the caller's array, and returns how many."""
    ctypes.memmove(array, (ctypes.c_uint32 * len(numbers))(*numbers), 4 * len(numbers))
    return len(numbers)


def test_a_part_that_was_made_has_no_addresses() -> None:
    def made(part: library.SharedPart) -> None:
        part.state = PartState.MADE

    steps, recorder = steps_of(made)
    assert steps.start_shared_part([1, 2], [3], WORK) == SharedPart(PartState.MADE)
    assert recorder.contents == [(WORK, None)]
    assert steps.start_shared_part([1, 2], [3], WORK, [b"", READ]) == SharedPart(PartState.MADE)
    assert recorder.contents[-1] == (WORK, bytes(16) + READ)


def test_needed_digests_are_named() -> None:
    def unknown(part: library.SharedPart) -> None:
        part.state = PartState.NEEDS_DIGESTS
        part.unknown_count = write(part.unknown_reads, 0, 2)

    part = steps_of(unknown)[0].start_shared_part([1, 2, 3], [4], WORK)
    assert part == SharedPart(PartState.NEEDS_DIGESTS, unknown_reads=(0, 2))


def test_a_difference_comes_with_the_addresses() -> None:
    def different(part: library.SharedPart) -> None:
        part.state, part.part = PartState.COMPUTING, 7
        ctypes.memmove(part.addresses, (ctypes.c_uint64 * 2)(4096, 8192), 16)
        part.has_difference, part.different_rank, part.different_work = 1, 3, 1
        part.different_count = write(part.different_reads, 0)

    part = steps_of(different)[0].start_shared_part([1], [2], WORK, [READ])
    assert (part.state, part.number, part.addresses) == (PartState.COMPUTING, 7, (4096, 8192))
    assert part.difference == PartDifference(3, work=True, reads=(0,))


@pytest.mark.parametrize(
    ("work", "reads"), [(b"short", [READ]), (WORK, [READ[:15]]), (WORK, [READ, READ])]
)
def test_digests_of_another_length_or_number_never_reach_c(work: bytes, reads: list[bytes]) -> None:
    steps, recorder = steps_of(lambda _: None)
    with pytest.raises(InvalidArgument):
        steps.start_shared_part([1], [2], work, reads)
    assert recorder.contents == []


def test_the_library_wants_a_digest_of_the_work_and_ends_only_what_began(join: Join) -> None:
    client = join(0, 2)
    first = client.allocate(Kind.OTHER, 2)
    with pytest.raises(InvalidArgument, match="work_digest is not set"):
        client.start_shared_part([first], [first + 1], bytes(16))
    with pytest.raises(NotFound):
        client.end_part(0, computed=True)
