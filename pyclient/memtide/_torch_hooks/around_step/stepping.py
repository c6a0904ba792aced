"""A process's options for its steps. Imports no torch: a run has them before its script does."""

from __future__ import annotations

from dataclasses import dataclass

from memtide._resume.step_manifest import StepManifest


@dataclass(frozen=True)
class Stepping:
    """How optimizers step, and whether iterations are recorded."""

    skip_non_finite: bool = False  # Skip steps whose gradients are infinite or NaN.
    on_host: bool = False  # Step tensors on a GPU on the host, in parts.
    commit: bool = False  # Commit each step with a manifest, from which a later process resumes.
    manifest: StepManifest | None = None  # The manifest that this process resumes from.
    records_blocks: bool = False  # Record what torch's allocator does in a few iterations.
    leaves_gradients: bool = False  # In ordinary memory while everything fits (ordinary_gradients).
