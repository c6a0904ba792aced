"""The interface of what a commit of each step needs: here, of a job that nothing resumes."""

from __future__ import annotations

from torch.optim import Optimizer


class CommittedJob:
    """The job of a process. memtide._resume.resume.ResumedJob derives from it."""

    def manifest_bytes(self, stepping: Optimizer | None, lost: str) -> bytes:
        """The step manifest that is committed with a step of this optimizer. `lost`: why chunks
        have other content than the last step; empty: they have not."""
        del stepping, lost
        return b""

    def committed(self, stepping: Optimizer | None) -> None:
        """Called after each commit."""
