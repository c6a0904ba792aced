"""Where the native library of the system is looked for."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from memtide._capi import locate


def test_the_systems_library_is_in_the_folder_of_the_machines_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MEMTIDE_LIBRARY", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(locate, "_PACKAGE_DIR", tmp_path)
    looked_for = []
    monkeypatch.setattr(Path, "is_file", lambda path: looked_for.append(str(path)))
    with pytest.raises(locate.NotInstalled):
        locate.find_library()
    assert "/usr/lib/aarch64-linux-gnu/libmemtide.so" in looked_for
