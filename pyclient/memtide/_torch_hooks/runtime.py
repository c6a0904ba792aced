"""memtide in a process: one client, its arenas, and the hooks in torch.

There is at most one runtime in a process. It is started before or after torch is imported, and
`install` puts the hooks into torch. Hooks call what they replaced; `uninstall` puts that back.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer

from memtide._activations.activations import Activations
from memtide._activations.budget import UNLIMITED_BYTES, Budget
from memtide._activations.script_choices import Choices
from memtide._activations.searched_plans import SearchedPlans
from memtide._capi.client import Client, Kind
from memtide._daemon.training import Training
from memtide._memory.adoption import adopt, adopt_state_of
from memtide._memory.chunk_size import Parameter
from memtide._memory.leases import LeaseLedger
from memtide._memory.tensor_manager import TensorManager
from memtide._optimizer_step.common_parameters import CommonParameters
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._optimizer_step.rank_difference import SaysDifference
from memtide._optimizer_step.rank_values import RankValues
from memtide._resume.resume import ResumedJob
from memtide._resume.step_manifest import StepManifest
from memtide._telemetry.daemon_reporter import Reporter
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import device_guards, patches
from memtide._torch_hooks.attributes import Attributes
from memtide._torch_hooks.block_recording import BlockRecording
from memtide._torch_hooks.collectives import Collectives
from memtide._torch_hooks.compiled_regions import CompiledRegions
from memtide._torch_hooks.gpu_collectives import GpuCollectives
from memtide._torch_hooks.gpu_runtime import GpuRuntime
from memtide._torch_hooks.module_hooks import NO_BACKWARD, ManagedParameters, ModuleHooks
from memtide._torch_hooks.module_names import ModuleNames
from memtide._torch_hooks.optimizer_hooks import wrapping_own_step
from memtide._torch_hooks.oversized_operands import OversizedOperands
from memtide._torch_hooks.patch_row import Context, When
from memtide._torch_hooks.shared_layers import SharedLayers
from memtide._torch_hooks.step_dispatch import StepDispatchMode
from memtide._trace import model as traces
from memtide.errors import FailedPrecondition

if TYPE_CHECKING:
    from memtide._resume.agree_across_nodes import Exchange


class Runtime:
    """Hooks of one client in torch."""

    def __init__(
        self,
        client: Client,
        observer: Observer,
        *,
        adopt_everything: bool,
        allowance: Callable[[], int] | None,
        chosen: Choices,
        training: Training | None = None,
        shares_contents: bool = False,
        shared_layers: SharedLayers | None = None,
    ) -> None:
        self.client = client
        self.shared_layers = shared_layers
        self.ledger = LeaseLedger(client)
        self.observer = Reporter(client, self.ledger, observer)
        self.manager = TensorManager(client, self.ledger)
        self._everything = adopt_everything
        self.managed = ManagedParameters(everything=adopt_everything)
        self.names = ModuleNames()
        client.lost.names_in = self.names.parameters_in
        self.module_hooks = ModuleHooks(self.manager, self.observer, self.managed, self.names)
        self.collectives: Collectives | GpuCollectives = (
            GpuCollectives(self.manager) if self.ledger.strict else Collectives(self.manager)
        )
        self._opens_activations = allowance is not None or chosen.are_made
        self.activations = Activations(
            self.manager,
            allowance or (lambda: UNLIMITED_BYTES),
            Attributes,
            self.observer.moments,
            chosen,
        )
        self.searched_plans: SearchedPlans | None = None  # Where a budget is kept.
        planning = self.activations.planning
        self.observer.is_wanted = lambda: planning.is_short
        self.regions = CompiledRegions(self.manager, self.module_hooks)
        self.offloaded = OffloadedSteps(self.manager, self.observer, training)
        self.manager.before_adoption = self.offloaded.see_thread
        on_device = client.properties.device_slots > 0
        self.common = (
            CommonParameters(self.manager, on_device=on_device) if shares_contents else None
        )
        # Ranks without a device compare all that they step (_optimizer_step/rank_parts.py).
        self._rank_values = RankValues(self.names.parameter_at) if on_device else None
        calls = self.offloaded.calls
        if calls.ranks is not None and training is not None:
            calls.ranks.on_difference = SaysDifference(
                training.rank, calls.geometry, self.names.parameter_at
            )
        self.module_hooks.on_gradient = self.offloaded.speculative.gradient_accumulated
        self._attributes = Attributes()
        self._undo: list[Callable[[], None]] = []
        self._stepping: set[int] = set()  # The threads that step.
        self._bookkeeping = threading.RLock()  # Held before and after steps, not in them.
        self._gpu: GpuRuntime | None = None  # On a GPU.
        self._oversized: OversizedOperands | None = None  # In host memory.
        self._resumed_job: ResumedJob | None = None  # Only for a named job.
        self.blocks: BlockRecording | None = None  # Only where a record of them is asked for.
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # As they were when an optimizer last made its first step: by then models are whole.
        self.parameters: list[Parameter] = []

    def install(self) -> None:
        """Puts the hooks in place. FailedPrecondition: torch lacks what they need.

        When everything is adopted, each parameter is moved to a chunk as a module registers it, so
        that also the construction of a model larger than memory works. Otherwise only what
        `offload` names is managed.
        """
        runs = self._runs()
        patches.check(runs)
        module_hooks = self.module_hooks
        module_hooks.watch()
        self._undo.append(module_hooks.unwatch)
        if self._everything:
            handle = torch_modules.register_module_parameter_registration_hook(
                self._on_registration
            )
            self._undo.append(handle.remove)
            handle = torch_modules.register_module_module_registration_hook(self.names.registered)
            self._undo.append(handle.remove)
        gpu = None
        if self.ledger.strict:
            gpu = self._gpu = GpuRuntime(
                self.manager, module_hooks, self.offloaded, self._steps_elsewhere
            )
            self._undo.append(gpu.close)
        else:
            self._oversized = OversizedOperands(self.manager)
            module_hooks.on_adopted = self._oversized.see
            self._undo.append(self._oversized.close)
        context = Context(
            runs=runs,
            manager=self.manager,
            module_hooks=module_hooks,
            observer=self.observer,
            offloaded=self.offloaded,
            collectives=self.collectives,
            regions=self.regions,
            compiled=gpu.compiled if gpu else None,
            around_step=_stepping,
            on_optimizer=self._on_optimizer,
            on_wrapping=self._on_wrapping,
            out_of_memory=gpu.elastic if gpu else None,
            leaves=gpu.leaves if gpu else None,
            switch=gpu.switch if gpu else None,
            saved_tensors=self.activations.hooks,
        )
        patches.install(context, self._attributes)
        if self._opens_activations:
            self.activations.open()
        if gpu is not None:
            self._attributes.when_imported("torch._dynamo.eval_frame", gpu.leaves.skip_calls)

    def uninstall(self) -> None:
        """Takes all hooks out of torch."""
        self.module_hooks.settle()
        self.module_hooks.forget_hooks()
        self.activations.close()
        if self.blocks is not None:
            self.blocks.close()
        self._attributes.undo()
        if self._gpu is not None:
            self._gpu.leaves.close()
        self.regions.close()
        while self._undo:
            self._undo.pop()()
        self.offloaded.close()

    def wrap_own_step(self, optimizer: Optimizer) -> None:
        """An optimizer may have a step of its own: a scheduler that is older than the hooks has put
        it there, around that of the class."""
        if "step" in vars(optimizer):
            wrapping = functools.partial(wrapping_own_step, _stepping, optimizer)
            self._attributes.replace(optimizer, "step", wrapping)

    def _runs(self) -> frozenset[When]:
        runs = {When.ALWAYS, When.GPU if self.ledger.strict else When.HOST}
        if self._everything:
            runs.add(When.EVERYTHING)
        if not self.client.properties.kernel_faults:
            runs.add(When.NO_KERNEL_FAULTS)
        return frozenset(runs)

    @contextlib.contextmanager
    def stepping(self, optimizer: Optimizer) -> Iterator[None]:
        """Around one optimizer step."""
        if self._is_nested():
            yield
            return
        if self.shared_layers is None:
            with self._stepping_alone(optimizer):
                yield
            return
        self.shared_layers.before_step(optimizer)
        with self._stepping_alone(optimizer):
            yield
        self.shared_layers.after_step(optimizer)

    def _is_nested(self) -> bool:
        """Whether a step begins within another one. On a GPU, hooks of a backward pass that a step
        makes run in a thread of the device."""
        if threading.get_ident() in self._stepping:
            return True
        in_backward = torch._C._current_graph_task_id() != NO_BACKWARD
        return self.ledger.strict and in_backward and bool(self._stepping)

    @contextlib.contextmanager
    def _stepping_alone(self, optimizer: Optimizer) -> Iterator[None]:
        if self.ledger.script_holds:
            raise FailedPrecondition(
                f"{type(optimizer).__name__} steps within memtide.hold: end that block before, as "
                "chunks that are held cannot be stepped"
            )
        with self._bookkeeping:
            first = optimizer not in self._stepped
            self._before_step(optimizer, first=first)
            lean = self._is_lean
            watched = first or (self.ledger.active and not self.ledger.strict)
            if watched:
                self._stepped.add(optimizer)
        thread = threading.get_ident()
        self._stepping.add(thread)
        try:
            # When nothing needs leasing, or lease dispatch does it, only the first step is watched:
            # there, state is born.
            if watched:
                mode = StepDispatchMode(self.manager, self.observer)
                self.offloaded.begin(optimizer, mode.close)
                try:
                    with mode:
                        yield
                        self.offloaded.finish()
                finally:
                    mode.close()
            else:
                self.offloaded.begin(optimizer, lambda: None)
                yield
                self.offloaded.finish()
        except BaseException:
            if self._gpu is not None:
                self._gpu.switch.end_phase()
            raise
        finally:
            self._stepping.discard(thread)
            self.offloaded.end()
        with self._bookkeeping:
            self._after_step(optimizer, first=first, lean=lean)

    @property
    def _is_lean(self) -> bool:
        # What a script has put in the place of adopted tensors is looked for in other steps.
        return self._gpu is not None and self._gpu.switch.lean

    def _before_step(self, optimizer: Optimizer, *, first: bool) -> None:
        self.module_hooks.settle()
        self.collectives.settle()
        if self._gpu is not None:
            self._gpu.leaves.settle()
        if self._resumed_job is not None:
            self._resumed_job.before_step()
        if self._gpu is not None:
            self._gpu.switch.begin_step(first=first)
        if first:
            if self.ledger.strict and not self._stepped:  # Set after torch was imported, perhaps.
                device_guards.warn_of_late_settings(self.client.cuda_settings)
            self.manager.lay_out(p for g in optimizer.param_groups for p in g["params"])
        if not self._is_lean:
            self.adopt_state_of(optimizer)
        if first:
            # Now, too: the step may need more than there is room for.
            self.parameters = self._list_parameters(born=False)
        self.observer.moment("step", type(optimizer).__name__)

    def _after_step(self, optimizer: Optimizer, *, first: bool, lean: bool) -> None:
        if not lean:
            self.adopt_state_of(optimizer)
        if self.common is not None:
            self.common.know(optimizer)
            self.common.after_step()
        if self._rank_values is not None:
            self._rank_values.after_step(optimizer)
        if first:
            self.parameters = self._list_parameters(born=True)
            self.manager.trim_all()  # Room reserved for expected tensors included.
        else:
            self.manager.trim()
        self.module_hooks.end_iteration()
        self.activations.end_iteration()
        self.observer.end_iteration()
        if self._gpu is not None:
            self._gpu.end_iteration()
        else:
            self.ledger.refresh()  # The balloon of the host pool may have grown or shrunk.
            if self._oversized is not None:
                self._oversized.look()
        if self.blocks is not None:
            self.blocks.end_iteration()

    def adopt_state_of(self, optimizer: Optimizer) -> None:
        """Moves what the optimizer keeps for managed parameters into chunks."""
        for parameter, state in optimizer.state.items():
            if parameter in self.managed:
                adopt_state_of(self.manager, parameter, state)

    def train_stage(self, *, alone: bool) -> None:
        """This rank trains one stage of a model, and that others differ is not said. `alone`: none
        has the same stage, so that ranks need not be compared."""
        calls = self.offloaded.calls
        if calls.ranks is not None:
            calls.ranks.on_difference = lambda _batch, _contents, _difference: None
        if alone:
            calls.ranks = None

    def adopt_apart(self, parameter: torch.Tensor, row: int) -> None:
        """Moves a parameter into chunks that have those of the same `row` only, 1 or 2, and none of
        a model's own."""
        adopt(self.manager, parameter, Kind.PARAMETER, row)

    def stepped_optimizers(self) -> list[Optimizer]:
        """Those of the script's optimizers that have made a step."""
        return list(self._stepped)

    def expected_parameters(self) -> list[Parameter]:
        """`parameters`; before the first step, what is adopted, with the states that Adam keeps."""
        return self.parameters or self._list_parameters(born=False)

    def _list_parameters(self, *, born: bool) -> list[Parameter]:
        """What is adopted, with the states that optimizers keep, or are guessed to until then."""
        listed = []
        for parameter in self.module_hooks.adopted():
            size_bytes = parameter.untyped_storage().nbytes()
            of_optimizers = [optimizer.state.get(parameter) for optimizer in self._stepped]
            states = tuple(
                t.nbytes for state in of_optimizers for t in self.manager.managed_in(state)
            )
            one = Parameter(size_bytes, trained=parameter.requires_grad)
            listed.append(replace(one, states=states) if born else one)
        return listed

    def _on_registration(self, _module: Any, _name: str, parameter: torch.Tensor) -> None:
        self.module_hooks.adopt_parameter(parameter)

    def record_blocks(self) -> None:
        """Records what torch's allocator does in a few iterations (block_recording.py)."""
        self.blocks = BlockRecording(self.manager, lambda: bool(self._stepping))

    def keep_steps(self, manifest: StepManifest | None) -> None:
        """Resumes the job from `manifest`, if there is one, and commits every step with a step
        manifest, so that the job outlives this process. REQUIRES: everything is adopted."""
        resumed_job = self._resumed_job = ResumedJob(self.manager, self.offloaded, manifest)
        self.regions.before_call = resumed_job.before_forward

        def before_forward(_module: Any, _inputs: Any) -> None:
            if not torch.compiler.is_compiling():  # Torch traces hooks as well.
                resumed_job.before_forward()

        handle = torch_modules.register_module_forward_pre_hook(before_forward)
        self._undo.append(handle.remove)

    def go_on_from(self, exchange: Exchange) -> None:
        """The nodes of a named job have agreed on what it goes on from. REQUIRES: keep_steps()."""
        assert self._resumed_job is not None
        self._resumed_job.go_on_from(exchange)

    @property
    def commits_steps(self) -> bool:
        """Whether each step is committed with a step manifest: `keep_steps` was called."""
        return self._resumed_job is not None

    def keep_budget(self, budget: Budget, say: Callable[[str], None] = lambda _: None) -> None:
        """Counts what is kept here, and what chunks leave on the device, in `budget`, and plans
        activations within it. `say` is called with each plan, in a line."""
        planning = self.activations.planning
        planning.planner = self.searched_plans = SearchedPlans(
            budget, self._trace_from(budget.socket_dir), planning.planner, say
        )
        budget.watch(self.activations)
        self.observer.count_kept_activations(lambda: self.activations.kept_bytes)
        if budget.limits.host_bytes is not None:
            self.observer.host_bytes = budget.take_most_host_bytes
        if self._gpu is not None:
            budget.follow(self._gpu.elastic)

    def _trace_from(self, socket_dir: Path) -> Callable[[], bytes]:
        return functools.partial(traces.fetch, socket_dir, self.client.properties.job_id)

    def _steps_elsewhere(self) -> bool:
        return self._resumed_job is not None or self.offloaded.in_parts

    def _on_wrapping(self, wrapping: torch.nn.Module, model: torch.nn.Module) -> None:
        if self.shared_layers is not None:
            self.shared_layers.wrap(wrapping, model)

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        if self.shared_layers is not None:
            self.shared_layers.know(optimizer)
        if self.common is not None:
            self.common.know(optimizer)
        if self._resumed_job is not None:
            self._resumed_job.know(optimizer)


_current: Runtime | None = None


def current() -> Runtime | None:
    """This process's runtime, if one is started; None in a forked child."""
    return _current if _current is not None and _current.manager.here else None


def start(
    client: Client,
    observer: Observer,
    *,
    adopt_everything: bool,
    allowance: Callable[[], int] | None = None,
    chosen: Choices | None = None,
    training: Training | None = None,
    shares_contents: bool = False,
    shared_layers: SharedLayers | None = None,
) -> Runtime:
    """Makes and installs the process's runtime. `allowance` says how many bytes of activations the
    process may keep now; None: all. `chosen`: what the script says is to be done with them.
    `shares_contents`: other scripts of the user may have sessions with the daemon.
    `shared_layers`: those that are to share their parameters.
    REQUIRES: there is no runtime."""
    global _current
    assert _current is None
    runtime = Runtime(
        client,
        observer,
        adopt_everything=adopt_everything,
        allowance=allowance,
        chosen=chosen or Choices(),
        training=training,
        shares_contents=shares_contents,
        shared_layers=shared_layers,
    )
    runtime.install()
    _current = runtime
    return runtime


def stop() -> None:
    """Takes the process's runtime out of torch; its client stays open."""
    global _current
    if _current is not None:
        _current.uninstall()
        _current = None


def _stepping(optimizer: Optimizer) -> contextlib.AbstractContextManager[None]:
    runtime = current()
    return contextlib.nullcontext() if runtime is None else runtime.stepping(optimizer)
