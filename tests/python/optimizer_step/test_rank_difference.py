"""A rank says once which parameter differs from another rank's, and in what."""

from __future__ import annotations

import pytest
from memtide._capi.shared_part import PartDifference
from memtide._optimizer_step.part_contents import contents_of
from memtide._optimizer_step.partition import Batch
from memtide._optimizer_step.rank_difference import SaysDifference
from rank_batches import CHUNK, ELEMENTS, GRADIENTS, adam_options, batch_at

_BASE = 1 << 20
_SECOND = _BASE + 2 * CHUNK + 4 * ELEMENTS


def _name(address: int) -> str:
    return "head.bias" if address >= _SECOND else "head.weight"


def said(
    capsys: pytest.CaptureFixture[str], *, work: bool = False, place: int = 0, parts: slice
) -> str:
    """The message if the content of a place differs."""
    batch, geometry = batch_at(_BASE, adam_options())
    batch = Batch(batch.parts[parts], batch.copies)
    contents = contents_of(batch, geometry)
    reads = (contents.reads.index(place),) if place else ()
    says = SaysDifference(3, geometry, _name)
    for _ in range(2):
        says(batch, contents, PartDifference(1, work=work, reads=reads))
    assert says.differences == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (GRADIENTS, "the gradients"),
        (2, "the values"),
        (3, "the optimizer states"),
        (4, "the optimizer states"),
    ],
)
def test_the_parameter_and_what_differs_are_named_once(
    place: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, place=place, parts=slice(1, 2)) == (
        f"memtide: in rank 3, {what} of head.bias differ from those of rank 1 in step 3: it makes "
        "this step by itself, and has copies of its own of what differs (said once)\n"
    )


def test_parameters_of_one_chunk_are_named_together(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, place=GRADIENTS, parts=slice(None))
    assert "the gradients of one of head.weight to head.bias differ from" in line


def test_other_work_is_named_before_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, work=True, place=GRADIENTS, parts=slice(None))
    assert (
        "the options or the elements of the step of head.weight differ from those of rank 1" in line
    )


def test_a_difference_in_what_is_only_copied_is_no_other_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch, geometry = batch_at(_BASE, adam_options())
    copied = Batch(copies=[(_BASE, _BASE + 64)])
    says = SaysDifference(0, geometry, _name)
    says(copied, contents_of(copied, geometry), PartDifference(1, False, (0,)))
    assert (says.differences, capsys.readouterr().err) == (0, "")
    says(batch, contents_of(batch, geometry), PartDifference(1, True, ()))
    assert "head.weight differ" in capsys.readouterr().err


def test_bytes_that_no_parameter_has_are_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    batch, geometry = batch_at(_BASE, adam_options())
    far = geometry.chunk(9)[0]
    batch.copies.append((far, far + 64))
    contents = contents_of(batch, geometry)
    number = contents.reads.index(9)
    SaysDifference(0, geometry, _name)(batch, contents, PartDifference(1, False, (number,)))
    assert "the bytes beside those of head.weight differ" in capsys.readouterr().err
