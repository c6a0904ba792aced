"""Resumes the job of `memtide run --job NAME`: reads its last commit and frees unused chunks.

A killed script leaves gradients, shadow chunks and others. All chunks that the last commit's step
manifest does not name are freed, so that a job does not grow with each kill. Imports no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memtide._capi import admin
from memtide._capi.client import Client
from memtide._daemon import training
from memtide._daemon.job_sessions import check_is_alone
from memtide._resume import resumed_step
from memtide._resume.step_manifest import StepManifest, read_manifest
from memtide.errors import DataLoss, FailedPrecondition

_AT_ONCE = 256


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
            check_is_alone(client, socket_dir, name)
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
        """The manifest that this process would go on from by itself. FailedPrecondition: it
        cannot."""
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
            text = f"job '{self.name}' is resumed: {manifest.steps} steps are done"
        else:
            text = f"job '{self.name}' has no step to resume from: it starts anew"
        if self._says:
            print(f"memtide: {text}", file=sys.stderr)
        named = set(manifest.chunks) if manifest is not None and is_here else set()
        unused = [chunk for chunk in self._chunks if chunk not in named]
        for start in range(0, len(unused), _AT_ONCE):
            ids = unused[start : start + _AT_ONCE]
            self._client.free(self._client.attach(ids), len(ids))
        self._chunks = []


def _chunks_of(client: Client, socket_dir: Path) -> list[int]:
    """All chunks that the job has, by the ids by which this rank knows them."""
    reply = admin.inspect_node(socket_dir, max_chunks=client.limits.chunks_per_node)
    job_id = client.properties.job_id
    listed = [c for c in reply.get("chunks", []) if int(c.get("job_id", 0)) == job_id]
    if client.ranks > 1:  # A chunk that ranks share has an id of each.
        names = [name for chunk in listed for name in chunk.get("names", [])]
        listed = [name for name in names if name.get("rank", 0) == client.rank]
    return [int(one["chunk_id"]) for one in listed]
