"""The processes that are in a named job now: a job is resumed by one process, or by one for a rank.

Imports no torch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from memtide._capi import admin
from memtide._capi.client import Client
from memtide.errors import FailedPrecondition

# A killed process's session ends when the kernel has closed its sockets.
_LONGEST_WAIT_S = 5.0
_POLL_S = 0.02


def wait_until_free(socket_dir: Path, name: str, rank: int, ranks: int) -> None:
    """Waits until no process of this user is in the job, or is this one of its ranks, so that what
    that has committed last is final.

    FailedPrecondition: a process still is after 5 s.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while sessions := [
        s
        for s in admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
        if s.get("job_name") == name
        and s.get("uid") == os.getuid()
        and (ranks < 2 or s.get("ranks", 0) != ranks or s.get("rank", 0) == rank)
    ]:
        if time.monotonic() > deadline:
            raise _in_use_error(sessions[0], name)
        time.sleep(_POLL_S)


def check_is_alone(client: Client, socket_dir: Path, name: str) -> None:
    """FailedPrecondition: another session is in the client's job."""
    own = client.properties
    others = [
        session
        for session in admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
        if int(session.get("job_id", 0)) == own.job_id
        and int(session.get("session_id", 0)) != own.session_id
    ]
    if not own.session_id:  # One of them is the client's.
        del others[:1]
    if others:
        raise _in_use_error(others[0], name)


def _in_use_error(session: dict[str, Any], name: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"process {session.get('pid')} runs job '{name}': end it first, or choose another name"
    )
