"""The schedule: one forward, one backward, from batch to batch without a flush."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from memtide._torch_hooks import runtime as runtimes
from memtide.errors import InvalidArgument, Unavailable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.optim import Optimizer

from memtide_methods.pipeline.not_finite import NotFinite
from memtide_methods.pipeline.thinned_messages import Largest, SentByStage, ThinnedMessages
from memtide_methods.pipeline.two_versions import TwoVersions

# The model's inputs, and the target that the loss compares with. Each rank uses what its stage
# needs.
Batch = tuple[torch.Tensor | tuple[torch.Tensor, ...], torch.Tensor]


class _Piece(NamedTuple):
    """A micro-batch."""

    batch: int
    number: int  # In the batch, and for the stage.
    args: tuple[Any, ...]
    target: torch.Tensor | None


class Schedule2BW(Schedule1F1B):
    """Trains one stage of a pipeline. Used by one thread.

    Unlike Schedule1F1B, with a flush after each batch, it holds two versions of the stage's
    parameters, and the gradient of a batch is that at the version before the newest one:
    W(t+1) = W(t) - step(gradient of batch t at W(t-1)).
    """

    def __init__(
        self,
        stage: PipelineStage,
        optimizer: Optimizer,
        n_microbatches: int,
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        scale_grads: bool = True,
        width: dist.ProcessGroup | None = None,
        send: Largest | None = None,
        recompute: bool = False,
    ) -> None:
        """`optimizer` has the parameters of this stage's module. While it steps, each has the
        gradient of one batch, so that a step pre-hook may clip it. A batch has `n_microbatches`, no
        less than there are stages. `scale_grads`: gradients are divided by that, as `loss_fn`
        returns means. `width`: the processes that have the same stage of other pipelines; gradients
        are averaged over them. `send`: how much of tensors stages send each other; None: all.
        `recompute`: backward computes the stage's forward again, and only its inputs are saved.
        """
        if n_microbatches < stage.num_stages:
            raise InvalidArgument(
                f"{n_microbatches} micro-batches are too few for {stage.num_stages} stages: the "
                "new version of a batch would come after the batch that needs it"
            )
        super().__init__(stage, n_microbatches, loss_fn, scale_grads=scale_grads)
        if (runtime := runtimes.current()) is not None:
            runtime.offloaded.train_stage(alone=width is None)
        self._optimizer = optimizer
        self._width = width
        self._weights = TwoVersions(stage.submod, recompute=recompute)
        stage.submod = self._weights
        stage.has_backward = True
        self._thinned: ThinnedMessages | None = None
        if send is not None:
            is_first = width is None or dist.get_rank(width) == 0
            self._thinned = ThinnedMessages(stage, send, prints=is_first)
        self._messages = stage if self._thinned is None else self._thinned
        self._not_finite = NotFinite(stage)
        self._in_flight: deque[tuple[_Piece, torch.Tensor | None]] = deque()
        self._losses: list[torch.Tensor] = []  # The last stage has those of the present batch.
        self._batches = 0  # The number of batches that have been stepped.

    @property
    def weight_bytes(self) -> int:
        """Bytes of the versions of this stage's parameters."""
        return self._weights.weight_bytes()

    @property
    def sent(self) -> SentByStage | None:
        """The bytes that this stage has sent; None without `send`."""
        return None if self._thinned is None else self._thinned.sent

    def run(self, batches: Iterable[Batch]) -> Iterator[torch.Tensor | None]:
        """Trains with all batches, and yields after each step: in the last stage the batch's mean
        loss, in others None.

        All ranks must get as many batches, and take all that this yields. Only then is the
        pipeline empty. The script's work after a step, such as a step of a schedule of learning
        rates, comes before the next step. In a named job that is resumed, the first batch has to be
        number `memtide.resumed_step()` of the training: then all goes on as if it had not ended.

        Unavailable: a stage beside this one has ended.
        """
        pieces = self._pieces(batches)
        most = self._num_stages - self._stage.stage_index
        piece = next(pieces, None)
        if piece is None:
            return
        self._initialize_stage(piece.args, {}, piece.target)  # type: ignore[no-untyped-call]
        sends: list[dist.Work] = []
        while piece is not None and len(self._in_flight) < most:
            self._wait(self._started(self._messages.get_fwd_recv_ops(piece.number)))
            self._forward(piece)
            # Gloo's work must not be waited for twice. The last output is sent while the first
            # gradient is received.
            self._wait(sends)
            sends = []
            if len(self._in_flight) < most:
                sends = self._started(self._messages.get_fwd_send_ops(piece.number))
            piece = next(pieces, None)
        yield from self._steady(piece, pieces)

    def _steady(
        self, piece: _Piece | None, pieces: Iterator[_Piece]
    ) -> Iterator[torch.Tensor | None]:
        messages = self._messages
        forward_sends = messages.get_fwd_send_ops(self._in_flight[-1][0].number)
        while self._in_flight:
            done = self._in_flight[0][0]
            self._wait(self._started(forward_sends + messages.get_bwd_recv_ops(done.number)))
            self._backward()
            exchanged = messages.get_bwd_send_ops(done.number)
            if piece is not None:
                exchanged = exchanged + messages.get_fwd_recv_ops(piece.number)
            works = self._started(exchanged)
            if done.number == self._n_microbatches - 1:
                yield self._step()
            self._wait(works)
            forward_sends = []
            if piece is not None:
                self._forward(piece)
                forward_sends = messages.get_fwd_send_ops(piece.number)
                piece = next(pieces, None)

    def _pieces(self, batches: Iterable[Batch]) -> Iterator[_Piece]:
        for number, (inputs, target) in enumerate(batches, self._batches):
            args = inputs if isinstance(inputs, tuple) else (inputs,)
            count = self._n_microbatches
            split: list[tuple[Any, ...]] = [()] * count
            if self._stage.is_first:
                split = self._split_inputs(args, {})[0]
            targets: list[torch.Tensor | None] = [None] * count
            if self._stage.is_last:
                targets = list(torch.tensor_split(target, count))
            for n in range(count):
                yield _Piece(number, n, split[n], targets[n])

    def _forward(self, piece: _Piece) -> None:
        if self._thinned is not None:
            self._thinned.unpack_fwd(piece.number)
        self._weights.read_for(piece.batch)
        output = self._stage.forward_one_chunk(
            piece.number, piece.args, {}, save_forward_output=False
        )
        loss = None
        if self._stage.is_last:
            loss = self._compute_loss(output, piece.target)  # type: ignore[no-untyped-call]
        self._not_finite.after_forward(piece.batch, piece.number, output if loss is None else loss)
        self._in_flight.append((piece, loss))

    def _backward(self) -> None:
        piece, loss = self._in_flight.popleft()
        if self._thinned is not None:
            self._thinned.unpack_bwd(piece.number)
        with self._weights.bound_for(piece.batch):
            self._stage.backward_one_chunk(piece.number, loss=loss)
        self._not_finite.after_backward(piece.batch, piece.number)
        if loss is not None:
            self._losses.append(loss.detach())
        # The buffer is used again, and autograd would add to its gradient.
        for info in self._stage.args_recv_info[piece.number]:
            if info.buffer is not None:
                info.buffer.grad = None

    def _step(self) -> torch.Tensor | None:
        scale = self._n_microbatches if self.scale_grads else 1
        batch, weights = self._batches, self._weights
        self._not_finite.end_batch(batch, self._shown(batch), weights.gradients(batch))
        weights.step(self._optimizer, batch, scale, self._width)
        self._batches += 1
        if self._thinned is not None:
            self._thinned.sent.steps += 1
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None

    def _started(self, operations: list[dist.P2POp]) -> list[dist.Work]:
        with self._naming_ended_stages():
            return dist.batch_isend_irecv(operations) if operations else []

    def _wait(self, works: list[dist.Work]) -> None:
        with self._naming_ended_stages():
            for work in works:
                work.wait()

    @contextlib.contextmanager
    def _naming_ended_stages(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            number, stages = self._stage.stage_index, self._stage.num_stages
            beside = [n for n in (number - 1, number + 1) if 0 <= n < stages]
            raise Unavailable(
                f"stage {number} of {stages} gets no answer in batch {self._shown(self._batches)}: "
                f"a stage beside it ({' or '.join(map(str, beside))}) has ended, and its own error "
                f"says why: {error}"
            ) from error

    def _shown(self, batch: int) -> int:
        """The number of a batch in the training, also if that is resumed."""
        return self._weights.before + batch
