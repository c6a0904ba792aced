"""torch.distributed.fsdp.fully_shard: layers that are to share do so before it shards them."""

from __future__ import annotations

import functools
from typing import Any

from memtide._launch import deferred_start
from memtide._torch_hooks.patching.attributes import Function, is_marked, marked
from memtide._torch_hooks.patching.later_patches import LaterPatches


def watch(patches: LaterPatches) -> None:
    """Replaces fully_shard when it is imported. A script imports it by name, mostly before it makes
    its first parameter, so this is called before torch is imported."""

    def replace(module: Any) -> None:
        if callable(getattr(module, "fully_shard", None)):
            patches.replace(module, "fully_shard", sharding)

    patches.when_imported("torch.distributed.fsdp._fully_shard._fully_shard", replace)


def sharding(original: Function) -> Function:
    """fully_shard, which shards what `LayerSharing.before_sharding` says."""
    if is_marked(original):  # A forked child has it from its parent.
        return original

    @functools.wraps(original)
    def fully_shard(module: Any, **options: Any) -> Any:
        shared = deferred_start.shared_layers()
        if shared is None:
            return original(module, **options)
        modules = list(module) if isinstance(module, list | tuple) else [module]
        wanted = shared.before_sharding(modules, options)
        if wanted:
            original(module if wanted == modules else wanted, **options)
        return module

    return marked(fully_shard)
