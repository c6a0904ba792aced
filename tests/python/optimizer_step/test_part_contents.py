"""Digests of a step part, which ranks compare: equal for equal work at any addresses, else not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from memtide._optimizer_step.part_contents import PartContents, contents_of
from memtide._optimizer_step.partition import Batch, Geometry, Part
from memtide._optimizer_step.torch_options import TensorNumber, TorchOptions
from rank_batches import CHUNK, ELEMENTS, GRADIENTS, adam_options, batch_at

_BASE, _OTHER_BASE = 1 << 20, 7 << 30


def contents(options: TorchOptions | None = None, **changes: Any) -> PartContents:
    changes.setdefault("base", _BASE)
    return contents_of(*batch_at(options=options or adam_options(), **changes))


def elements(made: PartContents) -> bytes:
    """The half of a digest that says which elements the work is of."""
    return made.work_digest[:8]


def operation(made: PartContents) -> bytes:
    """The half that says what is done with them."""
    return made.work_digest[8:]


def test_other_addresses_are_the_same_work() -> None:
    assert len(contents().work_digest) == 16
    assert contents(base=_OTHER_BASE) == contents()


def test_gradients_at_other_places_are_the_same_work() -> None:
    moved = contents(gradients=(512, 0), gradient_place=GRADIENTS + 3)
    assert moved.work_digest == contents().work_digest
    assert moved.gradients == {GRADIENTS + 3}
    assert moved.pieces[GRADIENTS + 3] == [(512, 4 * ELEMENTS), (0, 4 * ELEMENTS)]


def test_what_is_read_and_written_is_in_the_order_of_its_use() -> None:
    made = contents()
    assert (made.reads, made.writes) == ([GRADIENTS, 2, 3, 4], [2, 3, 4])
    size = 4 * ELEMENTS
    assert made.pieces[2] == [(0, size), (size, size), (2 * size, 128)]
    assert made.pieces[4] == [(0, size), (size, size)]


def test_copies_of_other_places_are_other_work() -> None:
    batches = [Batch(copies=[(start, start + 128)]) for start in (_BASE, _BASE + CHUNK)]
    first, second = (contents_of(batch, Geometry(_BASE, CHUNK)) for batch in batches)
    assert (first.reads, first.writes) == ([0], [0])
    assert (second.reads, second.writes) == ([1], [1])
    assert elements(first) != elements(second)


@pytest.mark.parametrize(("fresh", "masters", "reads"), [(True, False, 2), (True, True, 3)])
def test_states_that_begin_are_not_read_but_masters_are(
    fresh: bool, masters: bool, reads: int
) -> None:
    rounded = torch.bfloat16 if masters else None
    options = replace(adam_options(), fresh_states=fresh, rounded_format=rounded)
    made = contents(options)
    assert made.reads == [GRADIENTS, 2, 3, 4][:reads]
    assert made.writes == [2, 3, 4]


def _with(**changes: Any) -> Callable[[TorchOptions], TorchOptions]:
    return lambda options: replace(options, **changes)


def _with_threads(options: TorchOptions) -> TorchOptions:
    return replace(options, call=replace(options.call, threads=options.call.threads + 1))


def _with_modes(options: TorchOptions) -> TorchOptions:
    return replace(options, call=replace(options.call, modes=options.call.modes + 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: adam_options(lr=0.1 + 2**-56),
        lambda _: adam_options(lr=torch.tensor(0.1)),
        lambda _: adam_options(maximize=True),
        lambda _: adam_options(max_exp_avg_sqs=[0]),
        _with(step=4),
        _with(fresh_states=True),
        _with(gradient_format=torch.bfloat16),
        _with(state_format=torch.bfloat16),
        _with(single_numbers=(TensorNumber(0.5, torch.float32),)),
        _with(gradient_factor=0.5),
        _with_threads,
        _with_modes,
    ],
    ids=[
        *("lr", "lr in a tensor", "flag", "states of the call", "step", "fresh"),
        *("gradient's format", "states' format", "single number", "factor", "threads", "modes"),
    ],
)
def test_another_operation_changes_its_half(
    change: Callable[[TorchOptions], TorchOptions],
) -> None:
    assert operation(contents(change(adam_options()))) != operation(contents())


def test_another_operation_on_the_same_elements_leaves_their_half() -> None:
    assert elements(contents(replace(adam_options(), step=4))) == elements(contents())


def _moved(part: Part, offset: int, *, which: int) -> Part:
    written = list(part.written)
    written[which] = (written[which][0] + offset, written[which][1] + offset)
    return replace(part, written=tuple(written))


@pytest.mark.parametrize(
    "change",
    [
        lambda part: replace(part, first=64),
        lambda part: replace(part, left=64),
        lambda part: replace(part, first_element=64),
        lambda part: _moved(part, 64, which=1),
        lambda part: _moved(part, CHUNK, which=0),
        lambda part: replace(part, elements=ELEMENTS - 1),
    ],
    ids=["first", "left", "first of the optimizer", "offset of a state", "place", "elements"],
)
def test_other_elements_change_their_half_alone(change: Callable[[Part], Part]) -> None:
    batch, geometry = batch_at(_BASE, adam_options())
    before = contents_of(batch, geometry)
    batch.parts[1] = change(batch.parts[1])
    after = contents_of(batch, geometry)
    assert elements(after) != elements(before)
    assert operation(after) == operation(before)


def test_a_state_that_begins_elsewhere_in_its_chunk_is_other_work() -> None:
    batch, geometry = batch_at(_BASE, replace(adam_options(), fresh_states=True))
    before = contents_of(batch, geometry)
    batch.parts[1] = _moved(batch.parts[1], 64, which=2)
    assert elements(contents_of(batch, geometry)) != elements(before)


def test_a_parameter_at_another_place_is_other_work_even_where_all_moves() -> None:
    """Ranks with unlike models may have the same elements elsewhere."""
    batch, geometry = batch_at(_BASE, adam_options())
    moved, _ = batch_at(_BASE + CHUNK, adam_options())
    assert elements(contents_of(moved, geometry)) != elements(contents_of(batch, geometry))


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.copies.clear(),
        lambda batch: batch.copies.append((_BASE + 3 * CHUNK + 1024, _BASE + 3 * CHUNK + 1088)),
        lambda batch: batch.copies.__setitem__(0, (batch.copies[0][0], batch.copies[0][1] + 64)),
        lambda batch: batch.copies.__setitem__(0, tuple(at + 64 for at in batch.copies[0])),
    ],
    ids=["none", "one more", "longer", "elsewhere"],
)
def test_other_copies_change_the_half_of_elements(change: Callable[[Batch], None]) -> None:
    batch, geometry = batch_at(_BASE, adam_options())
    before = contents_of(batch, geometry)
    change(batch)
    after = contents_of(batch, geometry)
    assert elements(after) != elements(before)
    assert operation(after) == operation(before)
