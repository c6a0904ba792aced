"""`memtide idle`: says what a restart or a stop of the node's daemon would end. The scripts of the
Debian package call it, so it imports nothing that the package does not depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memtide._capi import admin

_EXIT_IDLE = 0
EXIT_SESSIONS = 3
_EXIT_JOBS = 4


def print_what_would_end(socket_dir: Path) -> int:
    """Prints it in a line, and returns the exit status: 0 nothing, 3 sessions, 4 only jobs that
    wait for a script to resume them. Unavailable: no daemon answers."""
    status, line = what_would_end(socket_dir)
    print(line)
    return status


def what_would_end(socket_dir: Path) -> tuple[int, str]:
    """The exit status and the line of `print_what_would_end`."""
    node = admin.inspect_node(socket_dir, sessions=True)
    sessions = node.get("sessions", [])
    count = max(len(sessions), int(node.get("session_count", 0)))
    if count:
        # Sessions of other users are counted, and root alone sees them.
        named = list(map(_named, sessions[:3]))
        if more := count - len(named):
            named.append(f"{more} more")
        are_open = "1 session is" if count == 1 else f"{count} sessions are"
        return EXIT_SESSIONS, f"{are_open} open: {', '.join(named)}"
    if chunks := int(node.get("chunk_count", 0)):
        return _EXIT_JOBS, f"{chunks} chunks of jobs wait for a script that resumes them"
    return _EXIT_IDLE, "idle: no session is open, and no job waits"


def _named(session: Mapping[str, Any]) -> str:
    name = session.get("job_name", "")
    # Users choose the names: ascii() escapes what would drive a terminal.
    job = f"job {ascii(name)}" if name else "a job without a name"
    return f"{job} of uid {session.get('uid', 0)}, process {session.get('pid', 0)}"
