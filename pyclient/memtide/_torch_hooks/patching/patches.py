"""The table of all that memtide replaces in torch, and in Python's standard library.

`install` walks the table, and `Attributes.undo` undoes all of it: an attribute gets the very object
back that it had, and one that was inherited is deleted again. A row whose module is not imported
waits for it with a finder in `sys.meta_path`, which `undo` takes out, too.

memtide can do without most rows: `absent` says what is off then. Without a row that is required,
`check` refuses to start. `memtide doctor` shows which rows this torch lacks. patch_table.py has the
rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._torch_hooks.patching.attributes import Attributes
from memtide._torch_hooks.patching.patch_context import Context
from memtide._torch_hooks.patching.patch_row import Patch, Version
from memtide._torch_hooks.patching.patch_table import PATCHES, UNCOMPILED
from memtide._torch_hooks.patching.patch_when import When
from memtide.errors import FailedPrecondition


def check(runs: frozenset[When]) -> None:
    """FailedPrecondition: this torch lacks what memtide cannot do without in such a run."""
    for patch in PATCHES:
        if not patch.absent and patch.when in runs and not patch.can_be_found():
            raise FailedPrecondition(
                f"torch {torch.__version__} has no {patch}, which memtide replaces because "
                f"{patch.why}: use another version of torch (memtide doctor)"
            )


def can_compile() -> bool:
    """Whether this torch has all that compiled code on a GPU needs. Imports its compiler."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals") and all(
        patch.can_be_found() for patch in PATCHES if patch.absent == UNCOMPILED
    )


def install(context: Context, attributes: Attributes) -> None:
    """Replaces all that is for such a run, now or once its module is imported. REQUIRES: `check`
    has passed."""
    for module in dict.fromkeys(patch.module for patch in PATCHES if patch.when in context.runs):
        attributes.when_imported(module, partial(_install, context, attributes))


def _install(context: Context, attributes: Attributes, module: Any) -> None:
    for patch in PATCHES:
        if patch.module != module.__name__ or patch.when not in context.runs:
            continue
        owner, make = patch.found(), patch.make(context)
        assert make is not None
        if owner is not None and patch.of_subclasses:
            attributes.replace_steps(owner, make)
        elif owner is not None:
            attributes.replace(owner, patch.name, make)


def expected(version: Version) -> list[Patch]:
    """The rows that a version of torch should have, Python's own aside."""
    return [p for p in PATCHES if p.module.partition(".")[0] == "torch" and p.is_in(version)]


def missing() -> list[Patch]:
    """The rows that this torch should have and has not. Imports their modules."""
    rows = expected(version_of(torch.__version__))
    if not torch.distributed.is_available():  # Nor has it what the rows are for.
        rows = [patch for patch in rows if not patch.module.startswith("torch.distributed")]
    return [patch for patch in rows if not patch.can_be_found()]


def version_of(text: str) -> Version:
    """The first two numbers of a version."""
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)
