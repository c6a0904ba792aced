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
from memtide._node import resumed_step, training
from memtide._node.step_manifest import StepManifest, read_manifest
from memtide.errors import DataLoss, FailedPrecondition

_AT_ONCE = 256
# A killed process's session ends when the kernel has closed its sockets.
_LONGEST_WAIT_S = 5.0
_POLL_S = 0.02


class NamedJob:
    """A named job that this process has opened, alone or as one of its ranks."""

    def __init__(self, client: Client, socket_dir: Path, name: str, *, resume: bool) -> None:
        """`resume`: goes on from the last commit. Ranks that torchelastic has started anew go on
        from what they have committed in this run in any case.

        FailedPrecondition: another process runs the job. DataLoss: its manifest cannot be read.
        """
        self.name = name
        self._client = client
        self._says = resume and client.rank == 0
        if client.ranks == 1:
            _check_is_alone(client, socket_dir, name)
        self._chunks = _chunks_of(client, socket_dir)
        _, serialized = client.committed()
        try:
            self.committed = read_manifest(serialized) if serialized else None
        except DataLoss:
            if resume:
                raise
            self.committed = None
        of_run = bool(own := training.own_id()) and self._training == own
        self.is_wanted = self.committed is not None and (resume or of_run)

    @property
    def _training(self) -> str:
        return self.committed.training if self.committed is not None else ""

    @property
    def manifest(self) -> StepManifest | None:
        """What this process would go on from by itself. FailedPrecondition: it cannot."""
        manifest = self.committed if self.is_wanted else None
        if manifest is not None and manifest.lost:
            raise FailedPrecondition(f"job '{self.name}' cannot be resumed: {manifest.lost}")
        return manifest

    def settle(self, manifest: StepManifest | None, *, is_here: bool = True) -> None:
        """It is certain what this process goes on from: the chunks that it had left and that are no
        part of it are freed. None: from nothing, the job begins anew. `is_here`: what the manifest
        names is in these chunks, not on another node."""
        if manifest is not None:
            resumed_step.set_resumed_step(manifest.steps)
        elif self._says:
            text = f"job '{self.name}' has no step to resume from: it starts anew"
            print(f"memtide: {text}", file=sys.stderr)
        named = set(manifest.chunks) if manifest is not None and is_here else set()
        unused = [chunk for chunk in self._chunks if chunk not in named]
        for start in range(0, len(unused), _AT_ONCE):
            ids = unused[start : start + _AT_ONCE]
            self._client.free(self._client.attach(ids), len(ids))
        self._chunks = []


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


def _check_is_alone(client: Client, socket_dir: Path, name: str) -> None:
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


def _chunks_of(client: Client, socket_dir: Path) -> list[int]:
    """All chunks that the job has, by the ids by which this rank knows them."""
    reply = admin.inspect_node(socket_dir, max_chunks=client.limits.chunks_per_node)
    job_id = client.properties.job_id
    listed = [c for c in reply.get("chunks", []) if int(c.get("job_id", 0)) == job_id]
    if client.ranks > 1:  # A chunk that ranks share has an id of each.
        names = [name for chunk in listed for name in chunk.get("names", [])]
        listed = [name for name in names if name.get("rank", 0) == client.rank]
    return [int(one["chunk_id"]) for one in listed]
