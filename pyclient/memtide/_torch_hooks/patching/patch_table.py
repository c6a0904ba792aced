"""The rows of the table of what memtide replaces, in the order of a training run.

A row says what is replaced, why, in which runs, and what is off without it. The functions that make
the replacements are in the files of their features; those here give them the parts of the runtime
that they work with. patches.py installs the rows. Rows of functions that are replaced at other
times are in later_patches.py, and are a part of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memtide._activations.default_hooks import DefaultHooks
from memtide._memory import tensor_references
from memtide._optimizer_step.torch_functional import FORMS, FunctionalSignature
from memtide._torch_hooks import (
    faulthandler_hook,
    fsdp,
    parameter_hooks,
    resizing,
    torch_save,
)
from memtide._torch_hooks.around_step import (
    foreach_batching,
    grad_scaler,
    multiply_by_one,
    optimizer_hooks,
)
from memtide._torch_hooks.collectives import FROM_ONE_TO_ONE, IN_ORDER
from memtide._torch_hooks.on_gpu import device_guards, leaf_modules
from memtide._torch_hooks.on_gpu.compiled_leases import CompiledLeases
from memtide._torch_hooks.on_gpu.dispatch_switch import DispatchSwitch
from memtide._torch_hooks.on_gpu.gpu_collectives import GpuCollectives
from memtide._torch_hooks.patching.attributes import Function, Maker
from memtide._torch_hooks.patching.later_patches import LATER
from memtide._torch_hooks.patching.patch_context import Context
from memtide._torch_hooks.patching.patch_row import Patch, Version
from memtide._torch_hooks.patching.patch_when import When


def _update_function(module: str, name: str, until: Version | None) -> Patch:
    return Patch(
        owner=f"torch.optim.{module}",
        name=name,
        why="its lists go in groups that fit, so that each state passes once",
        make=lambda c: partial(foreach_batching.in_groups, c.memory, c.observer),
        until=until,
        absent=f"{name} over more than fits: each state passes many times in a step",
    )


def _with(
    part: Callable[[Context], Any], make: Callable[..., Function]
) -> Callable[[Context], Maker]:
    """Has `make` called with a part of the context and the original."""
    return lambda context: partial(make, part(context))


def _offloading(form: FunctionalSignature, context: Context) -> Maker:
    return partial(context.offloaded.around, form)


def _multiplying(make: Callable[..., Any], context: Context) -> Maker:
    return partial(make, context.memory.addresses, context.offloaded.speculative)


def _leasing(name: str, context: Context) -> Maker:
    return partial(context.collectives.leasing, name)


def _calling(kind: type[torch.nn.Module], context: Context) -> Maker:
    assert context.leaves is not None
    return partial(context.leaves.calling, kind)


def _starting_threads(context: Context) -> Maker:
    def starting(original: Function) -> Function:
        if context.out_of_memory is not None:
            original = device_guards.starting_threads(
                context.memory, context.out_of_memory, original
            )
        return context.saved_tensors.starting_threads(original)

    return starting


_UPDATE_FUNCTIONS = {
    "_multi_tensor_": (
        *("_adafactor", "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam"),
        *("radam", "rmsprop", "rprop", "sgd"),
    ),
    "_fused_": ("adagrad", "adam", "adamw", "sgd"),
}
_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"
_SHARDED_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
UNCOMPILED = "torch.compile on a GPU: functions run as they are, with a warning"
_MAKES_PARTS = ("_init_sharded_param", "reset_sharded_param")

PATCHES: tuple[Patch, ...] = (
    *LATER,
    # Parameters come to be.
    Patch(
        owner="torch.nn.modules.module:Module",
        name="_apply",
        why="`to`, `half` and `share_memory` put parameters over other memory",
        make=lambda c: partial(parameter_hooks.applying, c.module_hooks),
        when=When.EVERYTHING,
        absent="parameters that Module.to replaces come into chunks only in the next forward pass",
    ),
    Patch(
        owner="torch.nn.parameter:Parameter",
        name="__deepcopy__",
        why="a copied parameter is in a chunk, too",
        make=lambda c: partial(parameter_hooks.deep_copying, c.module_hooks),
        when=When.EVERYTHING,
        absent="copied parameters come into chunks only in their first forward pass",
    ),
    Patch(
        owner="torch.utils",
        name="swap_tensors",
        why="torch refuses tensors that have weak references, of which memtide has one for each",
        make=lambda c: partial(tensor_references.swapping, c.module_hooks.forget_hook),
    ),
    Patch(
        owner="torch.optim.optimizer:Optimizer",
        name="add_param_group",
        why="parameters of no module are adopted, and optimizers are known before they step",
        make=lambda c: partial(parameter_hooks.adding_groups, c.module_hooks, c.on_optimizer),
        when=When.EVERYTHING,
    ),
    # Optimizers step.
    Patch(
        owner="torch.optim.optimizer:Optimizer",
        name="profile_hook_step",
        why="torch wraps each class's step by it, once: a step is leased for, and offloaded",
        make=lambda c: partial(optimizer_hooks.hooking_steps, c.around_step),
    ),
    Patch(
        owner="torch.optim.optimizer:Optimizer",
        name="step",
        why="torch has wrapped the step of classes that have instances before there are hooks",
        make=lambda c: partial(optimizer_hooks.wrapping_step, c.around_step),
        of_subclasses=True,
    ),
    Patch(
        owner="torch.optim.optimizer:Optimizer",
        name="_optimizer_step_code",
        why="an offloaded step is complete before the script's hooks look at it",
        make=lambda c: partial(optimizer_hooks.finishing_steps, c.offloaded),
    ),
    *(
        # From 2.7 on, AdamW is an Adam.
        _update_function(name, prefix + name.lstrip("_"), (2, 7) if name == "adamw" else None)
        for prefix, names in _UPDATE_FUNCTIONS.items()
        for name in names
    ),
    *(
        Patch(
            owner=form.module,
            name=form.name,
            why="what it is called for is computed in parts",
            make=partial(_offloading, form),
            absent=f"optimizers that call {form.name} step in the script's process",
        )
        for form in FORMS
    ),
    Patch(
        owner="torch.amp.grad_scaler:GradScaler",
        name="_unscale_grads_",
        why="gradients times the inverse scale are known during backward",
        make=lambda c: partial(grad_scaler.unscaling, c.memory, c.offloaded.speculative),
        absent="steps under a GradScaler are not speculative",
    ),
    *(
        Patch(
            owner=owner,
            name=name,
            why="gradients that are clipped by a factor of 1 are not written to",
            make=partial(_multiplying, make),
            absent="steps are not speculative where gradients are clipped",
        )
        for owner, name, make in (
            ("torch:Tensor", "mul_", multiply_by_one.multiplying),
            ("torch", "_foreach_mul_", multiply_by_one.multiplying_lists),
        )
    ),
    # Several ranks.
    Patch(
        owner="torch.nn.parallel.distributed:DistributedDataParallel",
        name="__init__",
        why="layers that are to share do so before ranks know their parameters",
        make=lambda c: partial(parameter_hooks.wrapping_models, c.on_wrapping),
        when=When.EVERYTHING,
        absent="memtide run --share under DistributedDataParallel",
    ),
    *(
        Patch(
            owner="torch.distributed.distributed_c10d:ProcessGroup",
            name=name,
            why="threads of the backend use chunks after the call: these are leased until then",
            make=partial(_leasing, name),
            absent=f"collectives by ProcessGroup.{name}: they fail where they write to chunks",
        )
        for name in (*IN_ORDER, *FROM_ONE_TO_ONE)
    ),
    *(
        Patch(
            owner="torch.distributed.distributed_c10d:ProcessGroup",
            name=name,
            why="coalesced collectives are launched when their group ends: till then it has leases",
            make=_with(lambda c: c.collectives, make),
            when=When.GPU,
            absent="coalesced collectives and batch_isend_irecv over tensors in chunks",
        )
        for name, make in (
            ("_start_coalescing", GpuCollectives.starting_groups),
            ("_end_coalescing", GpuCollectives.ending_groups),
        )
    ),
    *(
        Patch(
            owner=_SHARDED,
            name=name,
            why="it makes the tensors of this rank's part of a parameter, which are adopted",
            make=lambda c: partial(fsdp.making, c.memory),
            when=When.EVERYTHING,
            since=(2, 6),
            absent="parameters that fully_shard shards stay in ordinary memory",
            beside=("_sharded_param_data", *_MAKES_PARTS),
        )
        for name in _MAKES_PARTS
    ),
    Patch(
        owner=_SHARDED_GROUPS,
        name="foreach_all_gather",
        why="it reads parts of parameters, which are leased in one call",
        make=lambda c: partial(fsdp.gathering, c.module_hooks),
        when=When.EVERYTHING,
        since=(2, 6),
        absent="parts of sharded parameters are gathered by page faults",
    ),
    *(
        Patch(
            owner=f"{_SHARDED_GROUPS}:FSDPParamGroup",
            name=name,
            why="gradients of this rank's parts are there, and are adopted",
            make=_with(lambda c: c.memory, make),
            when=When.EVERYTHING,
            since=(2, 6),
            absent="gradients of sharded parameters stay in ordinary memory",
            beside=("_wait_for_post_backward",),
        )
        for name, make in (
            ("post_backward", fsdp.reducing),
            ("finalize_backward", fsdp.finalizing),
        )
    ),
    # Modules run.
    *(
        Patch(
            owner=f"{kind.__module__}:{kind.__name__}",
            name="_call_impl",
            why="what it accesses is known: it runs without lease dispatch",
            make=partial(_calling, kind),
            when=When.GPU,
            absent=f"the faster {kind.__name__}, where chunks do not all fit on a GPU",
        )
        for kind in leaf_modules.LEAVES
    ),
    *(
        Patch(
            owner=owner,
            name=name,
            why="a script that calls it may have left an iteration before its step",
            make=_with(lambda c: c.switch, make),
            when=When.GPU,
            absent="running short of memory after an iteration that ended before its step",
        )
        for owner, name, make in (
            ("torch.nn.modules.module:Module", "train", DispatchSwitch.training_or_evaluating),
            ("torch.optim.optimizer:Optimizer", "zero_grad", DispatchSwitch.zeroing),
        )
    ),
    # Uses of memory beside training.
    Patch(
        owner="torch:UntypedStorage",
        name="resize_",
        why="storages over chunks cannot be resized: the tensor leaves its chunk before",
        make=lambda c: partial(resizing.resizing_storages, c.memory, c.managed_tensors),
    ),
    *(
        Patch(
            owner="torch:Tensor",
            name=name,
            why="as UntypedStorage.resize_",
            make=lambda c: partial(resizing.resizing_tensors, c.memory),
        )
        for name in ("resize_", "resize_as_")
    ),
    Patch(
        owner="torch.serialization",
        name="_save",
        why="a system call cannot read chunks that are not mapped: they are copied first",
        make=lambda c: partial(torch_save.saving_through_copies, c.memory.addresses),
        when=When.NO_KERNEL_FAULTS,
    ),
    Patch(
        owner="faulthandler",
        name="enable",
        why="it sets signal handlers in front of memtide's",
        make=lambda _: faulthandler_hook.enabling,
        when=When.HOST,
    ),
    Patch(
        owner="threading:Thread",
        name="start",
        why="dispatch modes and saved-tensor hooks belong to a thread",
        make=_starting_threads,
    ),
    Patch(
        owner="torch._tensor_str",
        name="_str",
        why="it reads elements with all dispatch modes off",
        make=lambda c: partial(device_guards.printing, c.memory),
        when=When.GPU,
    ),
    # Tensors that autograd saves.
    *(
        Patch(
            owner="torch._C._autograd",
            name=f"_saved_tensors_hooks_{name}",
            why="torch's function transforms refuse to run under saved-tensor hooks",
            make=_with(lambda c: c.saved_tensors, make),
            absent="torch.func.grad, vjp and hessian under a memory budget: torch refuses them",
        )
        for name, make in (("disable", DefaultHooks.disabling), ("enable", DefaultHooks.enabling))
    ),
    # Compiled code.
    Patch(
        owner="torch",
        name="compile",
        why="it is to make no CUDA graphs, and where it has no effect, to say so",
        make=lambda _: device_guards.compiling,
        when=When.GPU,
        absent="warnings of torch.compile without effect",
    ),
    Patch(
        owner="torch._dynamo.eval_frame:OptimizedModule",
        name="__call__",
        why="it warns of module hooks, and they would be traced",
        make=lambda c: c.regions.calling_modules,
        absent="compiled modules without a warning of torch's",
    ),
    Patch(
        owner="torch._dynamo.eval_frame:OptimizeContext",
        name="__init__",
        why="module hooks are hidden while compiled functions run, so that none is traced",
        make=lambda c: c.regions.making_contexts,
        absent="one compilation for each compiled function: there are two",
    ),
    Patch(
        owner="torch._dynamo.output_graph:OutputGraph",
        name="call_user_compiler",
        why="a graph is leased for as a module is, and is not compiled if it is too large for that",
        make=lambda c: c.regions.compiling_graphs,
        absent=UNCOMPILED,
    ),
    *(
        Patch(
            owner="torch._functorch._aot_autograd.runtime_wrappers",
            name=name,
            why="all that a compiled graph uses is leased while it runs",
            make=_with(lambda c: c.compiled, make),
            when=When.GPU,
            absent=UNCOMPILED,
        )
        for name, make in (
            ("_create_runtime_wrapper", CompiledLeases.wrapping_graphs),
            ("call_func_at_runtime_with_args", CompiledLeases.calling_graphs),
        )
    ),
    Patch(
        owner="torch.autograd.graph:saved_tensors_hooks",
        name="__enter__",
        why="hooks may tell tensors apart by addresses, which autocast's copies share one by one",
        make=lambda c: c.memory.copies.entering_hooks,
        when=When.GPU,
    ),
    Patch(
        owner="torch._dynamo.guards:CheckFunctionManager",
        name="__init__",
        why="what it notes of tensors depends on whether lease dispatch is active",
        make=_with(lambda c: c.compiled, CompiledLeases.building_guards),
        when=When.GPU,
        absent=UNCOMPILED,
    ),
    Patch(
        owner="torch.cuda.graphs:CUDAGraph",
        name="capture_begin",
        why="a graph would use the addresses of chunks that have left",
        make=lambda _: device_guards.capturing,
        when=When.GPU,
    ),
    Patch(
        owner="torch.cuda.graphs:graph",
        name="__enter__",
        why="it changes the current stream before a capture, which is refused, begins",
        make=lambda _: device_guards.entering_graphs,
        when=When.GPU,
    ),
    Patch(
        owner="torch.nn.parallel.data_parallel:DataParallel",
        name="replicate",
        why="it copies parameters past the dispatcher, to GPUs to which chunks are not open",
        make=lambda _: device_guards.replicating,
        when=When.GPU,
    ),
    *(
        Patch(
            owner=module,
            name="_lazy_init",
            why="CUDA does not work in a child that is forked after memtide has begun to use it",
            make=lambda c: partial(device_guards.initializing, c.memory),
            when=When.GPU,
            absent="the advice for a forked child that uses CUDA",
        )
        # The second has imported it by name.
        for module in ("torch.cuda", "torch.cuda.random")
    ),
)
