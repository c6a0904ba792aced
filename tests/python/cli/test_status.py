"""Lines that `memtide status` prints of jobs, whose names and commands others have chosen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from memtide._capi import admin
from memtide._cli import status
from memtide._daemon.inspection import Others
from rich.console import Console


def _printed(monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]) -> str:
    monkeypatch.setattr(admin, "inspect_node", lambda *_, **__: reply)
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    status.print_status(Path("/run/memtide"), console)
    return out.getvalue()


@pytest.mark.parametrize("name", ["[/x]", "[bold]run[/bold]", "[link=file:///etc]x[/link]"])
def test_a_job_name_with_markup_is_printed_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"session_id": "1", "job_id": "2", "job_name": name, "rank_use": {}}
    assert _printed(monkeypatch, {"sessions": [session]}).count(name) == 2


def test_names_and_commands_do_not_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Clear the screen, by ESC and by the C1 control; write from right to left; begin a line.
    hostile = "a\x1b[2J\x9b2Jb\u202ec\u2028d\ne"
    monkeypatch.setattr(status, "_command", lambda _pid: hostile)
    printed = _printed(
        monkeypatch,
        {"sessions": [{"session_id": "1", "job_name": hostile}], "warnings": ["[/]\x1b[2J"]},
    )
    assert printed.count("a\ufffd[2J\ufffd2Jb\ufffdc\ufffdd\ufffde") == 2
    assert "warning: [/]\ufffd[2J" in printed
    assert not any(character in printed for character in "\x1b\x9b\u202e\u2028")


def test_of_jobs_of_other_users_one_line_says_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status.others_line(Others()) == ""
    others = {
        "session_count": 3,
        "job_count": 2,
        "chunk_count": 9,
        "device_share_bytes": str(1 << 30),
        "host_share_bytes": str(4 << 30),
    }
    line = "other users: 3 sessions, 2 jobs with 1.00 GiB of device and 4.00 GiB of host memory"
    assert line in _printed(monkeypatch, {"others": others})
