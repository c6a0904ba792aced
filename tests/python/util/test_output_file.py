"""The paths of a run's files are checked before it begins."""

from __future__ import annotations

from pathlib import Path

from memtide._util.output_file import check_writable


def test_a_check_of_an_output_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before", encoding="utf-8")
    for path in (old, new):
        check_writable(path)
    assert old.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [old]
