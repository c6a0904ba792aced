"""The folder by which started processes know their run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from memtide._launch.run_folder import RunFolder
from memtide.errors import Unavailable


def test_what_a_run_announces_is_read_by_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMTIDE_RUN", "")
    monkeypatch.setenv("PYTHONPATH", "")
    folder = RunFolder(tmp_path)
    folder.announce("options")
    assert folder.read() == "options"
    this_user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: this_user + 1)
    monkeypatch.setattr(pickle, "load", lambda _: pytest.fail("another user's objects were made"))
    with pytest.raises(Unavailable, match="is not of this user"):
        folder.read()


def test_the_first_process_that_asks_writes_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    assert folder.writer == 0
    assert folder.claim_outputs() and folder.claim_outputs()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not folder.claim_outputs()
