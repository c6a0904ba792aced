"""Parts of optimizer steps that ranks make once: the first rank to ask computes a part, and the
chunks of the others have its results (proto/memtide/v1/optimizer.proto, StartPart).

Ranks agree if the whole work is equal: the operation with its options and step, and the bytes of
all that is read. Gradients are compared by their digests. Chunks that ranks share already need
none. Results are whole chunks, so that a part is shared only if no other one of the step writes
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from memtide._capi.client import Client
from memtide._capi.content_hash import hash_pieces
from memtide._capi.shared_part import PartDifference, PartState
from memtide._daemon.training import Training
from memtide._optimizer_step.part_contents import PartContents, contents_of
from memtide._optimizer_step.partition import Batch, Geometry
from memtide.errors import MemtideError

# The batch that a rank computes by itself, where its chunks were used, and what differs.
Differs = Callable[[Batch, PartContents, PartDifference], None]


class RankParts:
    """Begins the parts of one rank. Safe to use from any thread."""

    def __init__(
        self,
        client: Client,
        geometry: Geometry,
        training: Training,
        on_difference: Differs | None = None,
    ) -> None:
        """`on_difference` is called before a batch is computed in which this rank differs."""
        self._client = client
        self._geometry = geometry
        self._secret = training.hash_secret
        self.made_here = self.made_elsewhere = 0  # Parts.
        self.on_difference = on_difference

    def can_share(self, batch: Batch) -> bool:
        """Whether the results of a batch are all that the chunks which it writes will contain."""
        return batch.is_apart

    @contextlib.contextmanager
    def lent(self, batch: Batch, shadows: Mapping[int, int]) -> Iterator[dict[int, int] | None]:
        """Has the chunks of a batch in host memory: their addresses by place, those of shadow
        chunks by theirs. None: another rank has computed the batch. Unless the block raises, the
        shadow chunks have new content."""
        contents = contents_of(batch, self._geometry)
        writes = [shadows[place] for place in contents.writes]
        digests = self._digests(contents, sorted(contents.gradients))
        while True:
            part = self._client.start_shared_part(
                contents.reads,
                writes,
                contents.work_digest,
                [digests.get(place, b"") for place in contents.reads],
            )
            if part.state is not PartState.NEEDS_DIGESTS:
                break
            unknown = [contents.reads[number] for number in part.unknown_reads]
            digests.update(self._digests(contents, unknown))
        if part.state is PartState.MADE:
            self.made_elsewhere += 1
            yield None
            return
        try:
            if part.difference is not None and self.on_difference is not None:
                self.on_difference(batch, contents, part.difference)
            yield dict(zip((*contents.reads, *writes), part.addresses, strict=True))
        except BaseException:
            # Fails only when the session is lost, and the part with it.
            with contextlib.suppress(MemtideError):
                self._client.end_part(part.number, computed=False)
            raise
        self._client.end_part(part.number, computed=True)
        self.made_here += 1

    def _digests(self, contents: PartContents, places: list[int]) -> dict[int, bytes]:
        """Digests of what the part reads in these chunks, which are in host memory meanwhile."""
        if not places:
            return {}
        number, addresses = self._client.start_part(places, [])
        try:
            return {
                place: hash_pieces(
                    self._secret, [(at + start, size) for start, size in contents.pieces[place]]
                )
                for place, at in zip(places, addresses, strict=True)
            }
        finally:
            self._client.end_part(number, computed=False)
