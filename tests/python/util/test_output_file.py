"""The paths of a run's files are checked before it begins."""

from __future__ import annotations

from pathlib import Path

from memtide._util.output_file import check_writable


def test_a_check_of_an_output_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("before", encoding="utf-8")
    for path in (kept, new):
        check_writable(path)
    assert kept.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [kept]
