"""The options of `memtide run`, and what the processes that it starts inherit of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memtide._daemon.connect import SessionRequest
from memtide._launch.outputs import Outputs
from memtide._launch.sharing import Sharing
from memtide._plan_file.plan_file import Plan


@dataclass(frozen=True)
class Options:
    """The options of `memtide run`."""

    request: SessionRequest
    outputs: Outputs
    quiet: bool = False
    skip_non_finite: bool = False
    steps_on_host: bool = False  # Also those of tensors on a GPU.
    resume: bool = False
    sharing: Sharing | None = None
    plan: Plan | None = None  # The choices of `memtide plan`, and its predictions.
    plan_file: Path | None = None


@dataclass(frozen=True)
class Inherited:
    """The options that a run announces to the processes that it starts."""

    options: Options  # For these processes.
    first: Options  # The options of the process of `memtide run`.
    pid: int  # The number of that process.
