"""The step calls of the fake client, computed into shadow chunks by torch's own arithmetic."""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from memtide._capi.client import Properties
from memtide._capi.library import DIGEST_BYTES
from memtide._capi.optimizer_step import CopyPiece, Format, Rule, StepOptions, StepPiece
from memtide._capi.shared_part import PartState, SharedPart
from memtide.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from memtide.optim._adamw import adamw
from memtide.optim._lion import lion
from torch.optim import adagrad, adam, sgd

_DTYPES = {
    Format.FLOAT32: torch.float32,
    Format.BFLOAT16: torch.bfloat16,
    Format.FLOAT16: torch.float16,
}
_FIRST_ID = 1000
_PATIENCE_S = 30
# The functions as they are before memtide replaces them.
_ADAM, _ADAMW, _SGD, _ADAGRAD, _LION = (
    adam._single_tensor_adam,
    adamw,
    sgd._single_tensor_sgd,
    adagrad._single_tensor_adagrad,
    lion,
)


class FakeSteps:
    """Has the methods of memtide._capi.optimizer_step.Steps. Unwritten content is NaN."""

    properties: Properties
    kinds: dict[int, Any]
    _memory: mmap.mmap

    def __init__(self) -> None:
        self.step_calls: list[tuple[StepOptions | None, list[StepPiece], list[CopyPiece]]] = []
        # The places that each part of this process reads, and those that it writes.
        self.parts: list[tuple[list[int], list[int]]] = []
        # Those that have not ended: the memory of the written chunks, and of those that are read.
        self._open: dict[int, dict[int, bytearray]] = {}
        self._read: dict[int, list[bytearray]] = {}
        self.committed_steps = 0
        self.before_commit: Callable[[], object] = lambda: None
        self.commits_with_all_ranks = 0
        self.committed_manifest = b""
        # What is raised for a part, by its number, in the daemon or here.
        self.fail_part: dict[int, Exception] = {}
        self.before_part: Callable[[], None] = lambda: None
        self._begun: set[int] = set()
        self._step_lock = threading.Lock()
        self.use_ended = threading.Condition()

    def step(
        self,
        options: StepOptions | None,
        pieces: Sequence[StepPiece],
        copies: Sequence[CopyPiece] = (),
        *,
        count_non_finite: bool = False,
    ) -> int:
        self.before_part()
        with self._step_lock:
            self.step_calls.append((options, list(pieces), list(copies)))
            if error := self.fail_part.get(self.begun_parts):
                raise error
            reads, writes = set(), set()
            for piece in pieces:
                for address in (piece.gradient, piece.parameter, *piece.states):
                    reads.add(self._place(address))
                for address in (piece.new_parameter, *piece.new_states):
                    writes.add(self._place(address))
                if piece.new_rounded:
                    writes.add(self._place(piece.new_rounded))
            for copy in copies:
                assert self._place(copy.source) == self._place(copy.source + copy.size_bytes - 1)
                reads.add(self._place(copy.source))
                writes.add(self._place(copy.target))
            self._begin(reads, writes)
            for piece in pieces:
                assert options is not None
                self._run(options, piece)
            for copy in copies:
                ctypes.memmove(copy.target, copy.source, copy.size_bytes)
            gradients = (
                self._tensor(p.gradient, p.elements, options.gradient_format) for p in pieces
            )
            return sum(int((~g.isfinite()).sum()) for g in gradients) if count_non_finite else 0

    @property
    def begun_parts(self) -> int:
        """How many parts have begun, in the daemon and here."""
        return len(self.step_calls) + len(self.parts)

    def start_part(self, reads: Sequence[int], writes: Sequence[int]) -> tuple[int, list[int]]:
        """The chunks are elsewhere than at their places, as with a daemon."""
        self.before_part()
        with self._step_lock:
            self.parts.append((list(reads), list(writes)))
            number = self.begun_parts
        if error := self.fail_part.get(number):
            raise error
        places = (*reads, *writes)
        assert len({*places}) == len(places)
        with self.use_ended:
            if not self.use_ended.wait_for(
                lambda: not any({*writes} & open_part.keys() for open_part in self._open.values()),
                _PATIENCE_S,
            ):
                raise FailedPrecondition("another part writes the same chunk")
            self._begin({*reads}, {*writes})
            chunks = {place: bytearray(self._bytes(place)) for place in places}
            self._open[number] = {place: chunks[place] for place in writes}
            self._read[number] = [chunks[place] for place in reads]
        return number, [
            ctypes.addressof(ctypes.c_char.from_buffer(chunk)) for chunk in chunks.values()
        ]

    def start_shared_part(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        work_digest: bytes,
        read_digests: Sequence[bytes] = (),
    ) -> SharedPart:
        """This is the only rank, which computes every part."""
        assert len(work_digest) == DIGEST_BYTES
        assert not read_digests or len(read_digests) == len(reads)
        number, addresses = self.start_part(reads, writes)
        return SharedPart(PartState.COMPUTING, number, tuple(addresses))

    def end_part(self, part: int, *, computed: bool, non_finite: int = 0) -> None:
        with self.use_ended:
            del self._read[part]
            for place, chunk in self._open.pop(part).items():
                self._memory[self._slice(place)] = bytes(chunk) if computed else self._lost()
            self.use_ended.notify_all()

    def _lost(self) -> bytes:
        return b"\xff" * self.properties.chunk_bytes

    def _begin(self, reads: set[int], writes: set[int]) -> None:
        if (reads | writes) - self.kinds.keys():
            raise NotFound("no chunk there")
        with self.use_ended:
            if not self.use_ended.wait_for(
                lambda: not (reads | writes) & self.in_use(), _PATIENCE_S
            ):
                raise FailedPrecondition("in use")
        for place in writes - self._begun:
            self._fill_place(place, 0xFF)
        self._begun |= writes

    def commit(
        self,
        step: int,
        places: Sequence[int],
        shadows: Sequence[int],
        manifest: bytes,
        *,
        keep_old_content: bool,
        with_all_ranks: bool = False,
        unwritten: Sequence[tuple[int, int]] = (),
    ) -> None:
        if step == self.committed_steps:
            return
        self.before_commit()
        if unwritten and list(unwritten) != self.versions(places):
            raise Aborted("a chunk was written meanwhile")
        self.commits_with_all_ranks += with_all_ranks
        if step != self.committed_steps + 1:
            raise FailedPrecondition("not the next step")
        if len({*places, *shadows}) != len(places) + len(shadows):
            raise InvalidArgument("a place twice")
        for place, shadow in zip(places, shadows, strict=True):
            if self.kinds[place] is not self.kinds[shadow]:
                raise InvalidArgument("unlike kinds")
            old, new = self._bytes(place), self._bytes(shadow)
            self._memory[self._slice(place)] = new
            self._memory[self._slice(shadow)] = old if keep_old_content else bytes(len(old))
        self.committed_steps, self.committed_manifest = step, manifest
        self._begun.clear()

    def chunk_ids(self, first_place: int, count: int) -> list[int]:
        return [place + _FIRST_ID for place in range(first_place, first_place + count)]

    def versions(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """The id of each chunk, and a number that changes with its content."""
        if any(place not in self.kinds for place in places):
            raise NotFound("no chunk there")
        return [(place + _FIRST_ID, hash(self._bytes(place))) for place in places]

    def attach(self, ids: Sequence[int]) -> int:
        """Attaches copies, because here the session that has the chunks is still this one."""
        places = [chunk_id - _FIRST_ID for chunk_id in ids]
        if any(place not in self.kinds for place in places):
            raise NotFound("no such chunk")
        first = self.allocate(self.kinds[places[0]], len(ids))
        for number, place in enumerate(places):
            self.kinds[first + number] = self.kinds[place]
            self._memory[self._slice(first + number)] = self._bytes(place)
        return first

    def committed(self) -> tuple[int, bytes]:
        return self.committed_steps, self.committed_manifest

    def _run(self, options: StepOptions, piece: StepPiece) -> None:
        n = piece.elements
        gradient = self._tensor(piece.gradient, n, options.gradient_format)
        if options.gradient_factor != 1:
            gradient = gradient * torch.tensor(options.gradient_factor)
        parameter = self._tensor(piece.parameter, n, options.parameter_format).clone()
        states: list[Any] = [
            self._tensor(address, n, options.state_format).clone() for address in piece.states
        ]
        shared = {
            "lr": options.lr,
            "weight_decay": options.weight_decay,
            "maximize": options.maximize,
            "grad_scale": None,
            "found_inf": None,
        }
        step = torch.tensor(float(options.step - 1))
        is_ours = options.rule is Rule.LION or options.rounded_format or options.rounding_seed
        if is_ours or options.state_format is not options.parameter_format:
            self._run_ours(options, piece, gradient, parameter, states)
        elif options.rule in (Rule.ADAM, Rule.ADAMW):
            _ADAM(
                [parameter],
                [gradient],
                *([state] for state in [*states, None][:3]),
                state_steps=[step],
                amsgrad=options.amsgrad,
                has_complex=False,
                beta1=options.beta1,
                beta2=options.beta2,
                eps=options.eps,
                capturable=False,
                differentiable=False,
                decoupled_weight_decay=options.rule is Rule.ADAMW,
                **shared,
            )
        elif options.rule is Rule.SGD:
            buffers = [None] if options.fresh_states else states
            _SGD(
                [parameter],
                [gradient],
                buffers,
                momentum=options.momentum,
                dampening=options.dampening,
                nesterov=options.nesterov,
                has_sparse_grad=False,
                **shared,
            )
            states = buffers
        else:
            _ADAGRAD(
                [parameter],
                [gradient],
                states,
                [step],
                lr_decay=options.lr_decay,
                eps=options.eps,
                has_sparse_grad=False,
                differentiable=False,
                has_complex=False,
                **shared,
            )
        self._tensor(piece.new_parameter, n, options.parameter_format).copy_(parameter)
        for address, state in zip(piece.new_states, states, strict=False):
            self._tensor(address, n, options.state_format).copy_(state)

    def _run_ours(
        self,
        options: StepOptions,
        piece: StepPiece,
        gradient: torch.Tensor,
        parameter: torch.Tensor,
        states: list[torch.Tensor],
    ) -> None:
        masters = [parameter] if options.rounded_format else []
        rounded = parameter.to(_DTYPES[options.rounded_format]) if masters else parameter
        rule = _LION if options.rule is Rule.LION else functools.partial(_ADAMW, eps=options.eps)
        rule(
            [rounded],
            [gradient],
            masters,
            *([state] for state in states),
            state_steps=[torch.tensor(float(options.step - 1))],
            first_elements=[piece.first_element],
            lr=options.lr,
            beta1=options.beta1,
            beta2=options.beta2,
            weight_decay=options.weight_decay,
            maximize=options.maximize,
            stochastic=options.rounding_seed != 0,
        )
        if masters:
            target = self._tensor(piece.new_rounded, piece.elements, options.rounded_format)
            target.copy_(rounded)

    def _tensor(self, address: int, elements: int, form: Format) -> torch.Tensor:
        dtype = _DTYPES[form]
        last = address + elements * dtype.itemsize - 1
        assert self._place(address) == self._place(last), "a span crosses chunks"
        buffer = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        return torch.frombuffer(buffer, dtype=dtype)

    def _place(self, address: int) -> int:
        return (address - self.properties.base) // self.properties.chunk_bytes

    def _slice(self, place: int) -> slice:
        size = self.properties.chunk_bytes
        return slice(place * size, (place + 1) * size)

    def _bytes(self, place: int) -> bytes:
        return self._memory[self._slice(place)]

    def _fill_place(self, place: int, value: int) -> None:
        self._memory[self._slice(place)] = bytes([value]) * self.properties.chunk_bytes

    def in_use(self) -> set[int]:
        raise NotImplementedError

    def allocate(self, kind: Any, count: int) -> int:
        raise NotImplementedError
