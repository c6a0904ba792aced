"""What `memtide run --job NAME` finds of that job: its last step, and chunks that nobody needs.

A killed script leaves gradients, twins and whatever else it had. All but what the last published
step names is ended, so that a job does not grow with each kill; on a node of more chunks than one
listing has, what is beyond it ends with the job. Imports no torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from memtide import _admin, job
from memtide._native import Client
from memtide._steps import MOST_LISTED
from memtide.errors import FailedPrecondition
from memtide.job_note import Note, read_note

_AT_ONCE = 256
# A killed process's session ends when the kernel has closed its sockets.
_PATIENCE_S = 5.0
_PAUSE_S = 0.02


def take_up(client: Client, socket_dir: Path, name: str, *, resume: bool) -> Note | None:
    """The note of the step that is gone on from; None: the job begins.

    FailedPrecondition: another process runs it, or it cannot be gone on with.
    """
    _, written = client.published()
    found = read_note(written) if written and resume else None
    if found is not None and found.lost:
        raise FailedPrecondition(f"job '{name}' cannot be resumed: {found.lost}")
    own_job = _job_alone(socket_dir, name)
    kept = set(found.chunks) if found is not None else set()
    _end_all_but(kept, client, socket_dir, own_job)
    if found is None and resume:
        print(f"memtide: job '{name}' has no step to resume: it begins", file=sys.stderr)
    if found is not None:
        job.set_resumed_step(found.steps)
    return found


def wait_until_free(socket_dir: Path, name: str) -> None:
    """Returns when no process of this user is in the job: what is published of it by then is the
    last there will be. FailedPrecondition: one stays."""
    deadline = time.monotonic() + _PATIENCE_S
    while others := [
        s
        for s in _admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
        if s.get("job_name") == name and s.get("uid") == os.getuid()
    ]:
        if time.monotonic() > deadline:
            raise _is_run_by(others[0], name)
        time.sleep(_PAUSE_S)


def _job_alone(socket_dir: Path, name: str) -> int:
    """The id of this process's job, which no other process is in."""
    sessions = _admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
    own = _job_of(sessions)
    for session in sessions:
        if session.get("job_id") == own and session.get("pid") != os.getpid():
            raise _is_run_by(session, name)
    return int(own)


def _is_run_by(session: dict[str, Any], name: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"job '{name}' is run by process {session.get('pid')}; end it first, or choose another name"
    )


def _job_of(sessions: list[dict[str, Any]]) -> str:
    own = [s["job_id"] for s in sessions if s.get("pid") == os.getpid() and "job_id" in s]
    if not own:
        raise FailedPrecondition("the daemon does not list this process's session")
    return str(own[0])


def _end_all_but(kept: set[int], client: Client, socket_dir: Path, job_id: int) -> None:
    reply = _admin.inspect_node(socket_dir, max_chunks=MOST_LISTED)
    left = [
        int(chunk["chunk_id"])
        for chunk in reply.get("chunks", [])
        if int(chunk.get("job_id", 0)) == job_id and int(chunk["chunk_id"]) not in kept
    ]
    for start in range(0, len(left), _AT_ONCE):
        some = left[start : start + _AT_ONCE]
        client.free(client.attach(some), len(some))
