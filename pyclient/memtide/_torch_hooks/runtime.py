"""memtide in a process: one client, its arenas, and the hooks in torch.

There is at most one runtime in a process. It is started before or after torch is imported, and
`install` puts the hooks into torch. Hooks call what they replaced; `uninstall` puts that back.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer

from memtide._activations.activations import Activations
from memtide._activations.budget import UNLIMITED_BYTES, Budget, Sampling
from memtide._activations.planning import Planner
from memtide._activations.script_choices import Choices
from memtide._activations.searched_plans import SearchedPlans
from memtide._capi.client import Client
from memtide._daemon.training import Training
from memtide._memory.leases import LeaseLedger
from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.common_parameters import CommonParameters
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._optimizer_step.rank_values import RankValues
from memtide._resume.resume import ResumedJob
from memtide._telemetry.daemon_reporter import Reporter
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.around_step.optimizer_hooks import wrapping_own_step
from memtide._torch_hooks.around_step.ordinary_gradients import OrdinaryGradients
from memtide._torch_hooks.around_step.step_dispatch import StepDispatchMode
from memtide._torch_hooks.around_step.stepped_states import SteppedStates
from memtide._torch_hooks.around_step.stepping import Stepping
from memtide._torch_hooks.block_recording import BlockRecording
from memtide._torch_hooks.compiled_regions import CompiledRegions
from memtide._torch_hooks.device_side import DeviceSide
from memtide._torch_hooks.host_side import HostSide
from memtide._torch_hooks.module_hooks import NO_BACKWARD, ModuleHooks
from memtide._torch_hooks.module_names import ModuleNames
from memtide._torch_hooks.module_parameters import ManagedParameters
from memtide._torch_hooks.on_gpu.gpu_side import GpuSide
from memtide._torch_hooks.patching import patches
from memtide._torch_hooks.patching.attributes import Attributes
from memtide._torch_hooks.patching.later_patches import LaterPatches
from memtide._torch_hooks.patching.patch_context import Context
from memtide._torch_hooks.patching.patch_when import When
from memtide._trace import model as traces
from memtide._util.program_capture import is_captured
from memtide._util.step_phase import Step, StepPhase
from memtide.errors import FailedPrecondition

_PLAIN = Stepping()
_Arguments = ParamSpec("_Arguments")


class Runtime:
    """Hooks of one client in torch, and the phases of each optimizer's step."""

    def __init__(
        self,
        client: Client,
        observer: Observer,
        *,
        adopt_everything: bool,
        allowance: Callable[[], int] | None = None,
        chosen: Choices | None = None,
        training: Training | None = None,
        shares_contents: bool = False,
        first_phases: Sequence[StepPhase] = (),
        stepping: Stepping = _PLAIN,
        budget: Budget | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`allowance` says how many bytes of activations the process may keep now; None: what
        `budget` leaves, or all. `chosen`: the script's choices for them. `shares_contents`: other
        scripts of the user may have sessions with the daemon. `first_phases` come before those of
        memtide, and behind a step after them. `say` is called with each plan of activations, in a
        line. REQUIRES: everything is adopted, if steps are committed."""
        self.client = client
        self._attributes = Attributes()
        self._everything = adopt_everything
        self.managed = ManagedParameters(everything=adopt_everything)
        self.names = ModuleNames()
        self.ledger = LeaseLedger(client, lambda: self._device.end_collective())
        self.observer = self._make_reporter(observer, budget)
        self.memory = ManagedMemory(client, self.ledger, lambda: self.offloaded.see_thread())
        self.observer.count_hooks(self.memory.costs)
        limit = None if budget is None else budget.allocator_limit
        self._gpu = GpuSide(self.memory, limit) if self.ledger.strict else None
        self._device: DeviceSide = self._gpu or HostSide(self.memory)
        self.resumed_job = ResumedJob(self.memory, stepping.manifest) if stepping.commit else None
        self.offloaded = self._make_offloaded_steps(training)
        self.offloaded.skip_non_finite(skip=stepping.skip_non_finite)
        if stepping.on_host and self.ledger.strict:
            self.offloaded.on_host = True
        self._gradients = self._make_gradients(stepping, budget)
        self.module_hooks = ModuleHooks(
            self.memory,
            self.observer,
            self.managed,
            self.names,
            self._device,
            self.offloaded.speculative.gradient_accumulated,
            self._gradients,
        )
        # A job that goes on finds its parameters where its manifest says.
        gathers = self.resumed_job is None
        self.states = SteppedStates(
            self.memory, self.managed, self.module_hooks, self.observer, gathers=gathers
        )
        self.searched_plans: SearchedPlans | None = None  # Where a budget is kept.
        self.activations = self._make_activations(allowance, chosen or Choices(), budget, say)
        self.regions = CompiledRegions(self.memory, self.module_hooks, self._before_forward)
        self._stepping: set[int] = set()  # The threads that step.
        self.blocks: BlockRecording | None = None
        if stepping.records_blocks:
            self.blocks = BlockRecording(self.memory.arenas, lambda: bool(self._stepping))
        self._phases = [*first_phases, *self._make_phases(shares_contents)]
        self._bookkeeping = threading.RLock()  # Held before and after steps, not in them.
        self._undo: list[Callable[[], None]] = []

    def _make_reporter(self, observer: Observer, budget: Budget | None) -> Reporter:
        return Reporter(
            self.client,
            self.ledger,
            observer if budget is None else Sampling(budget, observer),
            is_wanted=lambda: self.activations.planning.is_short,
            host_bytes=budget.take_most_host_bytes if budget and budget.limits_host else None,
        )

    def _make_activations(
        self,
        allowance: Callable[[], int] | None,
        chosen: Choices,
        budget: Budget | None,
        say: Callable[[str], None],
    ) -> Activations:
        is_set = allowance is not None or (budget is not None and budget.limits.named())
        if allowance is None and budget is not None:
            allowance = budget.allowance_bytes
        self._opens_activations = is_set or chosen.are_made
        made = Activations(
            self.memory,
            allowance or (lambda: UNLIMITED_BYTES),
            lambda: LaterPatches(self._attributes),
            self.observer.moments,
            chosen,
            None if budget is None else functools.partial(self._search_plans, budget, say),
        )
        if self._gpu is not None:
            self._gpu.elastic.move_activations = made.move_some
            if budget is not None:
                elastic = self._gpu.elastic
                budget.watch_device(lambda: elastic.was_short)
        if budget is not None:
            budget.watch(made)
            self.observer.count_kept_activations(lambda: made.kept_bytes)
        return made

    def _make_offloaded_steps(self, training: Training | None) -> OffloadedSteps:
        return OffloadedSteps(
            self.memory,
            self.observer,
            training,
            job=self.resumed_job,
            around_rest=self._device.around_rest,
            name_at=self.names.parameter_at,
        )

    def _make_gradients(
        self, stepping: Stepping, budget: Budget | None
    ) -> OrdinaryGradients | None:
        # A limit counts what is in pools beside what is not.
        is_limited = budget is not None and budget.limits.named()
        if is_limited or self.ledger.strict or not stepping.leaves_gradients:
            return None
        return OrdinaryGradients(
            self.memory,
            lambda: self.module_hooks.adopted(),
            lambda: self.offloaded.in_parts,
        )

    def _make_phases(self, shares_contents: bool) -> list[StepPhase]:
        """`before_step` is called in this order, and what comes after a step in the reverse one."""
        on_device = self.client.properties.device_slots > 0
        phases = (
            self.blocks,
            self.module_hooks,
            self._gradients,
            self.memory.pressure,
            # Ranks without a device compare all that they step (_optimizer_step/rank_parts.py).
            RankValues(self.names.parameter_at) if on_device else None,
            CommonParameters(self.memory, on_device=on_device) if shares_contents else None,
            self._device,
            self.resumed_job,
            self.states,
            self.observer,
            self.activations,
        )
        return [phase for phase in phases if phase is not None]

    def install(self) -> None:
        """Puts the hooks in place. FailedPrecondition: torch lacks what they need.

        When everything is adopted, each parameter is moved to a chunk as a module registers it, so
        that also the construction of a model larger than memory works. Otherwise only what
        `offload` names is managed.
        """
        runs = self._runs()
        patches.check(runs)
        gpu = self._gpu
        if gpu is not None:
            gpu.open(self.module_hooks, self._steps_elsewhere)
        self.module_hooks.watch()
        self._undo.append(self.module_hooks.unwatch)
        if self._everything:
            handle = torch_modules.register_module_parameter_registration_hook(
                self._on_registration
            )
            self._undo.append(handle.remove)
            handle = torch_modules.register_module_module_registration_hook(self.names.registered)
            self._undo.append(handle.remove)
        self._undo.append(self._device.close)  # It may put module hooks back, and so goes first.
        context = Context(
            runs=runs,
            memory=self.memory,
            module_hooks=self.module_hooks,
            observer=self.observer,
            offloaded=self.offloaded,
            collectives=self._device.collectives,
            regions=self.regions,
            compiled=gpu.compiled if gpu else None,
            around_step=_stepping,
            on_optimizer=self._on_optimizer,
            on_wrapping=self._on_wrapping,
            out_of_memory=gpu.elastic if gpu else None,
            leaves=gpu.leaves if gpu else None,
            switch=gpu.switch if gpu else None,
            saved_tensors=self.activations.hooks,
            managed_tensors=self.states.tensors,
        )
        patches.install(context, self._attributes)
        if self._opens_activations:
            self.activations.open()
        if gpu is not None:
            self._attributes.when_imported("torch._dynamo.eval_frame", gpu.leaves.skip_calls)
        if self.resumed_job is not None:
            handle = torch_modules.register_module_forward_pre_hook(self._before_module)
            self._undo.append(handle.remove)

    def uninstall(self) -> None:
        """Takes all hooks out of torch."""
        self.module_hooks.settle()
        self.module_hooks.forget_hooks()
        self.activations.close()
        if self.blocks is not None:
            self.blocks.close()
        self._attributes.undo()
        self.regions.close()
        while self._undo:
            self._undo.pop()()
        self.offloaded.parts.close()

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
        with self._stepping_alone(optimizer):
            yield

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
            step = Step(optimizer, is_first=optimizer not in self.states.optimizers)
            for phase in self._phases:
                phase.before_step(step)
            # When nothing needs leasing, or lease dispatch does it, only the first step is watched:
            # there, state is born.
            watched = step.is_first or (self.ledger.active and not self.ledger.strict)
            if watched:
                self.states.optimizers.add(optimizer)
        thread = threading.get_ident()
        self._stepping.add(thread)
        try:
            if watched:
                mode = StepDispatchMode(self.memory, self.observer)
                self.offloaded.begin(optimizer, mode.close)
                with contextlib.closing(mode), mode:
                    yield
                    self.offloaded.finish()
            else:
                self.offloaded.begin(optimizer, lambda: None)
                yield
                self.offloaded.finish()
        except BaseException:
            self._device.end_failed_step()
            raise
        finally:
            self._stepping.discard(thread)
            self.offloaded.end()
        with self._bookkeeping:
            for phase in reversed(self._phases):
                phase.after_step(step)
            for phase in reversed(self._phases):
                phase.end_iteration()

    def _on_registration(self, _module: Any, _name: str, parameter: torch.Tensor) -> None:
        self.module_hooks.adopt_parameter(parameter)

    def _before_module(self, _module: Any, _inputs: Any) -> None:
        if not is_captured():  # Torch traces hooks as well.
            self._before_forward()

    def _before_forward(self) -> None:
        if self.resumed_job is not None:
            self.resumed_job.before_forward()

    def _search_plans(
        self, budget: Budget, say: Callable[[str], None], without_search: Planner
    ) -> SearchedPlans:
        trace = functools.partial(traces.fetch, budget.socket_dir, self.client.properties.job_id)
        self.searched_plans = SearchedPlans(budget, trace, without_search, say)
        return self.searched_plans

    def _steps_elsewhere(self) -> bool:
        return self.resumed_job is not None or self.offloaded.in_parts

    def _on_wrapping(self, wrapping: torch.nn.Module, model: torch.nn.Module) -> None:
        for phase in self._phases:
            phase.wrap(wrapping, model)

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        for phase in self._phases:
            phase.know(optimizer)


_current: Runtime | None = None
_latest_names = ModuleNames()  # Stay when that runtime stops: tensors leave its chunks then.


def current() -> Runtime | None:
    """This process's runtime, if one is started; None in a forked child."""
    return _current if _current is not None and _current.memory.addresses.here else None


def parameters_in(start: int, end: int) -> list[str]:
    """The names that the latest runtime knows of parameters with bytes in [start, end)."""
    return _latest_names.parameters_in(start, end)


def _starting(make: Callable[_Arguments, Runtime]) -> Callable[_Arguments, Runtime]:
    def start(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Runtime:
        """Makes and installs the process's runtime. REQUIRES: there is none."""
        global _current, _latest_names
        assert _current is None
        runtime = make(*args, **kwargs)
        _latest_names = runtime.names
        runtime.install()
        _current = runtime
        return runtime

    return start


start = _starting(Runtime)


def stop() -> None:
    """Takes the process's runtime out of torch; its client stays open."""
    global _current
    if _current is not None:
        _current.uninstall()
        _current = None


def _stepping(optimizer: Optimizer) -> contextlib.AbstractContextManager[None]:
    runtime = current()
    return contextlib.nullcontext() if runtime is None else runtime.stepping(optimizer)
