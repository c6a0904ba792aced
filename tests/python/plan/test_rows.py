"""Rows of what others measured: the ones in the tree, and lines that are wrong."""

import json
from collections import Counter

import pytest
from memtide.errors import InvalidArgument
from memtide_plan import rows

RIGHT = {
    "id": "a",
    "source": "an author",
    "where": "a table",
    "block": "a block",
    "model": {"name": "llama-3-8b"},
    "training": {"batch": 1, "sequence": 1024},
    "machine": {"name": "desktop-4090"},
    "system": "resident",
    "figure": {"kind": "step_s", "value": 1.5},
    "tolerance": 0.1,
    "counted": True,
    "calibration": False,
}


def loaded(tmp_path, *documents):
    lines = [d if isinstance(d, str) else json.dumps(d) for d in documents]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return rows.load(path)


def test_a_right_line_is_a_row(tmp_path):
    (row,) = loaded(tmp_path, RIGHT)
    assert (row.id, row.figure.kind, row.figure.value) == ("a", "step_s", 1.5)
    assert (row.tolerance, row.counted, row.calibration, row.note) == (0.1, True, False, "")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"surprise": 1}, "a row has no 'surprise'"),
        ({"system": None}, "'system' is None, and has to be a text"),
        ({"source": ""}, "'source' is '', and has to be a text"),
        ({"training": 3}, "'training' is 3, and has to be an object"),
        ({"counted": 1}, "'counted' is 1, and has to be true or false"),
        ({"model": "llama"}, "'model' is 'llama', and has to be an object or null"),
        ({"model": None}, "a row without a model cannot be counted"),
        ({"note": 4}, "'note' is 4, and has to be a text"),
        ({"tolerance": 1.5}, "'tolerance' is 1.5, and has to be a share from 0 to 1"),
        ({"tolerance": True}, "'tolerance' is True, and has to be a share from 0 to 1"),
        ({"tolerance": float("nan")}, "'tolerance' is nan"),
        ({"tolerance": 0}, "'tolerance' is 0, and has to be 0 for 'fits', and above it"),
        ({"figure": {"kind": "fits", "value": 1}}, "has to be true or false for 'fits'"),
        ({"figure": {"kind": "fits", "value": True}}, "has to be 0 for 'fits'"),
        ({"figure": {"kind": "speed", "value": 1}}, "'kind' is 'speed', and has to be one of"),
        ({"figure": {"kind": "step_s", "value": 0}}, "has to be a number above 0"),
        ({"figure": {"kind": "step_s", "value": float("inf")}}, "has to be a number above 0"),
        ({"figure": {"kind": "step_s", "value": 1, "more": 2}}, "a figure has no 'more'"),
        ({"figure": {"kind": "ratio", "value": 1}}, "has to be a row's name for a ratio"),
        ({"figure": {"kind": "step_s", "value": 1, "of": "a"}}, "has to be a row's name"),
        ({"counted": False, "calibration": True}, "that is not counted cannot calibrate"),
        ({"id": "x" * 20_000}, "a row has at most 16384 bytes"),
    ],
)
def test_a_wrong_line_is_refused_with_its_file_and_number(tmp_path, change, what):
    with pytest.raises(InvalidArgument) as refused:
        loaded(tmp_path, RIGHT, {**RIGHT, "id": "b", **change})
    assert str(refused.value).startswith("some.jsonl:2: ")
    assert what in str(refused.value)


@pytest.mark.parametrize("line", ["{", "[" * 100_00, "\x00", "", "[1]", "null", '{"id": "a"}'])
def test_what_is_no_object_is_refused(tmp_path, line):
    with pytest.raises(InvalidArgument, match=r"^some\.jsonl:2: "):
        loaded(tmp_path, RIGHT, line, RIGHT)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(InvalidArgument, match=r"some\.jsonl:1: this is not JSON"):
        rows.load(path)


def test_two_rows_of_one_name_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"some\.jsonl:2: another row is called 'a', too"):
        loaded(tmp_path, RIGHT, RIGHT)


def test_a_ratio_to_no_row_is_refused(tmp_path):
    ratio = {**RIGHT, "figure": {"kind": "ratio", "value": 0.5, "of": "b"}}
    with pytest.raises(InvalidArgument, match="'a' is compared with 'b', which is none"):
        loaded(tmp_path, ratio)


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "some.jsonl").touch()
    with pytest.raises(InvalidArgument, match="has no rows"):
        rows.load(tmp_path / "some.jsonl")


def test_the_tree_has_as_many_rows_and_sources_as_promised():
    counted = [row for row in rows.load() if row.counted]
    assert len(counted) >= 120
    assert len({row.source for row in counted}) >= 9
    frontier = Counter(row.block for row in counted if row.source == "als244/dataflow")
    assert frontier == {"H100 frontier": 69, "RTX 5090": 20}


def test_at_most_a_fifth_of_a_source_calibrates_and_of_two_none():
    counted = Counter(row.source for row in rows.load() if row.counted)
    calibrating = Counter(row.source for row in rows.load() if row.calibration)
    for source, number in calibrating.items():
        assert counted[source] >= 5
        assert number <= counted[source] / 5
    assert len(counted.keys() - calibrating.keys()) >= 2


def test_a_row_that_is_not_counted_says_why():
    assert [row.id for row in rows.load() if not row.counted and not row.note] == []
