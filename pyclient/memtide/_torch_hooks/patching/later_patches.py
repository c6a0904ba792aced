"""The rows of the patch table for what no runtime installs, and what replaces it. Imports no torch.

Each of these is replaced when a feature begins, which puts it back when it ends: a rehearsal, a
launch. LaterPatches refuses to replace what has no row.
"""

from __future__ import annotations

from typing import Any

from memtide._torch_hooks.patching.attributes import Attributes, Maker
from memtide._torch_hooks.patching.patch_row import Patch
from memtide._torch_hooks.patching.patch_when import When

_MODULE = "torch.nn.modules.module:Module"
_OPTIMIZER = "torch.optim.optimizer:Optimizer"
_CHANGES = {
    "os": (
        *("mkdir", "rmdir", "remove", "unlink", "truncate", "chmod", "chown", "utime"),
        *("rename", "replace", "symlink", "link"),
    ),
    "shutil": ("rmtree", "move"),
}

LATER: tuple[Patch, ...] = (
    # Blocks of the script's model.
    Patch(
        owner=_MODULE,
        name="_call_impl",
        why="blocks are watched, rehearsed and recomputed, by their classes",
        when=When.ACTIVATIONS,
        absent="recomputing blocks, and plans of activations",
        of_subclasses=True,
    ),
    Patch(
        owner=_MODULE,
        name="__call__",
        why="the script, or an answer of memtide plan, has chosen for activations of modules",
        when=When.ACTIVATIONS,
        absent="choices for the activations of modules",
        of_subclasses=True,
    ),
    *(
        Patch(
            owner=owner,
            name=name,
            why="a block in which the script has it cannot be recomputed",
            when=When.ACTIVATIONS,
            absent="finding this in blocks, which are recomputed all the same",
        )
        for owner, name in (
            ("torch.autograd.graph:saved_tensors_hooks", "__enter__"),
            ("torch.utils.checkpoint:CheckpointFunction", "forward"),
            ("torch._C._autograd", "_saved_tensors_hooks_disable"),
        )
    ),
    # A launch.
    *(
        Patch(
            owner=owner,
            name=name,
            why="a session is opened right before the first parameter is made or used",
            when=When.LAUNCH,
            absent="sessions of processes whose first parameter comes in this way",
        )
        for owner, name in (
            (_MODULE, "register_parameter"),
            (_MODULE, "__call__"),
            (_OPTIMIZER, "add_param_group"),
        )
    ),
    *(
        Patch(
            owner=owner,
            name="start_processes",
            why="each process that it starts is to know which rank it is",
            when=When.LAUNCH,
            absent="ranks that torch.multiprocessing starts share no memory",
        )
        for owner in ("torch.multiprocessing", "torch.multiprocessing.spawn")
    ),
    *(
        Patch(
            owner=owner,
            name="init_process_group",
            why="when it returns, all ranks are there: they join one job, or agree on a step",
            when=When.LAUNCH,
            absent="ranks that are known only by their process group",
        )
        for owner in ("torch.distributed.distributed_c10d", "torch.distributed")
    ),
    Patch(
        owner="torch.distributed.fsdp._fully_shard._fully_shard",
        name="fully_shard",
        why="layers that are to share do so before it shards them",
        when=When.LAUNCH,
        since=(2, 6),
        absent="memtide run --share under fully_shard",
    ),
    # A script that shows its model to memtide plan.
    *(
        Patch(
            owner=owner,
            name=name,
            why=why,
            when=When.PLAN,
            absent="memtide plan SCRIPT",
        )
        for owner, name, why in (
            (_MODULE, "__call__", "the first forward pass shows the model and its inputs"),
            (_OPTIMIZER, "__init__", "what an optimizer has is trained"),
            ("torch.amp.autocast_mode:autocast", "__init__", "it says the type of computing"),
            ("torch", "compile", "the model is seen as it is"),
            ("torch", "save", "it writes to no file that Python opens"),
            (
                "transformers.modeling_utils:PreTrainedModel",
                "from_pretrained",
                "the model is made from its configuration, without its weights",
            ),
            ("builtins", "open", "files that are written are copies in a scratch folder"),
            ("io", "open", "files that are written are copies in a scratch folder"),
        )
    ),
    *(
        Patch(
            owner=owner,
            name=name,
            why="the script's writes go nowhere",
            when=When.PLAN,
            absent="memtide plan SCRIPT",
        )
        for owner, names in _CHANGES.items()
        for name in names
    ),
)


class LaterPatches(Attributes):
    """Replaces attributes that have a row in LATER, at any time, and puts them back together."""

    def __init__(self, whole: Attributes | None = None) -> None:
        """`whole` puts back at its end what this has not."""
        super().__init__()
        if whole is not None:
            whole.undo_also(self.undo)

    def replace(self, owner: Any, name: str, make: Maker) -> None:
        assert any(row.is_of(owner, name) for row in LATER), f"{owner}.{name} has no row"
        super().replace(owner, name, make)
