"""Resumes the job of `memtide run --job NAME`: reads its last commit and frees unused chunks.

A killed script leaves gradients, shadow chunks and others. All chunks that the last commit's step
manifest does not name are freed, so that a job does not grow with each kill. Imports no torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from memtide._capi import admin
from memtide._capi.client import Client
from memtide._node import resumed_step
from memtide._node.step_manifest import StepManifest, read_manifest
from memtide.errors import FailedPrecondition

_AT_ONCE = 256
# A killed process's session ends when the kernel has closed its sockets.
_LONGEST_WAIT_S = 5.0
_POLL_S = 0.02


def resume_job(client: Client, socket_dir: Path, name: str, *, resume: bool) -> StepManifest | None:
    """The step manifest that this process resumes from; None: the job starts at its beginning.

    FailedPrecondition: another process runs the job, or the job cannot be resumed.
    """
    _, serialized = client.committed()
    manifest = read_manifest(serialized) if serialized and resume else None
    if manifest is not None and manifest.lost:
        raise FailedPrecondition(f"job '{name}' cannot be resumed: {manifest.lost}")
    job_id = _exclusive_job(socket_dir, name)
    chunks = set(manifest.chunks) if manifest is not None else set()
    _free_all_but(chunks, client, socket_dir, job_id)
    if manifest is None and resume:
        print(f"memtide: job '{name}' has no step to resume from: it starts anew", file=sys.stderr)
    if manifest is not None:
        resumed_step.set_resumed_step(manifest.steps)
    return manifest


def wait_until_free(socket_dir: Path, name: str) -> None:
    """Waits until no process of this user is in the job, so that its last commit is final.

    FailedPrecondition: a process is still in it after 5 s.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while sessions := [
        s
        for s in admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
        if s.get("job_name") == name and s.get("uid") == os.getuid()
    ]:
        if time.monotonic() > deadline:
            raise _in_use_error(sessions[0], name)
        time.sleep(_POLL_S)


def _exclusive_job(socket_dir: Path, name: str) -> int:
    """The id of this process's job. FailedPrecondition: another process is in it, too."""
    sessions = admin.inspect_node(socket_dir, sessions=True).get("sessions", [])
    job_id = _own_job(sessions)
    for session in sessions:
        if session.get("job_id") == job_id and session.get("pid") != os.getpid():
            raise _in_use_error(session, name)
    return int(job_id)


def _in_use_error(session: dict[str, Any], name: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"process {session.get('pid')} runs job '{name}': end it first, or choose another name"
    )


def _own_job(sessions: list[dict[str, Any]]) -> str:
    job_ids = [s["job_id"] for s in sessions if s.get("pid") == os.getpid() and "job_id" in s]
    if not job_ids:
        raise FailedPrecondition("the daemon does not list this process's session")
    return str(job_ids[0])


def _free_all_but(chunks: set[int], client: Client, socket_dir: Path, job_id: int) -> None:
    reply = admin.inspect_node(socket_dir, max_chunks=client.limits.chunks_per_node)
    unused = [
        int(chunk["chunk_id"])
        for chunk in reply.get("chunks", [])
        if int(chunk.get("job_id", 0)) == job_id and int(chunk["chunk_id"]) not in chunks
    ]
    for start in range(0, len(unused), _AT_ONCE):
        ids = unused[start : start + _AT_ONCE]
        client.free(client.attach(ids), len(ids))
