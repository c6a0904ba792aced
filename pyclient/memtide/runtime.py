"""memtide in a process: one client, its arenas, and the hooks in torch.

There is at most one runtime in a process. It is started before or after torch is imported, and
`install` puts the hooks into torch. Hooks call what they replaced; `uninstall` puts that back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer

from memtide import _native, sharded, strict
from memtide._native import Client
from memtide.adopt import Adopter
from memtide.chunk_size import Parameter
from memtide.collectives import Collectives
from memtide.continuation import Continuation
from memtide.daemon_step import DaemonSteps
from memtide.elastic import Elastic
from memtide.groups import in_groups, list_functions
from memtide.job_note import Note
from memtide.leases import Ledger
from memtide.moments import Moments, Scope
from memtide.net import NetMode
from memtide.observer import Observer
from memtide.registering import adding_groups, applying, deep_copying
from memtide.reporter import Reporter
from memtide.saving import saving_through_copies
from memtide.step import StepMode
from memtide.times_one import multiplying, multiplying_lists
from memtide.torch_updates import functions
from memtide.unscaling import unscaling, unscaling_scalers


class Runtime:
    """Hooks of one client in torch."""

    def __init__(self, client: Client, observer: Observer, *, adopt_everything: bool) -> None:
        self.client = client
        self.ledger = Ledger(client)
        self.observer = Reporter(client, self.ledger, observer)
        self.adopter = Adopter(client, self.ledger)
        self._everything = adopt_everything
        self.scope = Scope(everything=adopt_everything)
        self.moments = Moments(self.adopter, self.observer, self.scope)
        self.collectives = Collectives(self.adopter)
        self.daemon = DaemonSteps(self.adopter, self.observer)
        self.moments.on_gradient = self.daemon.early.gradient_came
        self._undo: list[Callable[[], None]] = []
        self._stepping = 0
        self._elastic: Elastic | None = None  # On a GPU.
        self._continuation: Continuation | None = None  # Of a named job.
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # As they were when an optimizer last made its first step: by then models are whole.
        self.parameters: list[Parameter] = []

    def install(self) -> None:
        """Puts the hooks in place.

        When everything is adopted, each parameter is moved to a chunk as a module registers it, so
        that also the construction of a model larger than memory works. Otherwise only what
        `offload` names is managed.
        """
        moments = self.moments
        handles = [
            torch_modules.register_module_forward_pre_hook(moments.before_forward),
            torch_modules.register_module_forward_hook(moments.after_forward, always_call=True),
        ]
        if self._everything:
            handles.append(
                torch_modules.register_module_parameter_registration_hook(self._on_registration)
            )
            self._wrap(torch.nn.Module, "_apply", functools.partial(applying, moments))
            self._wrap(torch.nn.Parameter, "__deepcopy__", functools.partial(deep_copying, moments))
            grouping = functools.partial(adding_groups, moments, self._on_optimizer)
            self._wrap(Optimizer, "add_param_group", grouping)
            sharded.install(self.adopter, self.moments, self._wrap)
        self._undo += [handle.remove for handle in handles]
        self._wrap(Optimizer, "profile_hook_step", self._around_profile_hook_step, static=True)
        _wrap_known_optimizers(Optimizer)
        for module, name in list_functions():
            self._wrap(module, name, functools.partial(in_groups, self.adopter, self.observer))
        for module, form in functions():
            self._wrap(module, form.name, functools.partial(self.daemon.around, form))
        self._wrap(Optimizer, "_optimizer_step_code", self._around_step_code)
        for scaler in unscaling_scalers():
            self._wrap(scaler, "_unscale_grads_", functools.partial(unscaling, self.daemon.early))
        for owner, name, around in (
            (torch.Tensor, "mul_", multiplying),
            (torch, "_foreach_mul_", multiplying_lists),
        ):
            self._wrap(owner, name, functools.partial(around, self.adopter, self.daemon.early))
        if self.ledger.strict:
            self._spread_net()
        else:
            self._wrap(faulthandler, "enable", self._around_faulthandler)
            self.collectives.install(self._wrap)
        if not self.client.properties.kernel_faults:
            self._wrap(torch.serialization, "_save", self._around_save)

    def uninstall(self) -> None:
        """Takes all hooks out of torch."""
        self.moments.settle()
        self.moments.forget_hooks()
        while self._undo:
            self._undo.pop()()
        self.daemon.close()

    @contextlib.contextmanager
    def stepping(self, optimizer: Optimizer) -> Iterator[None]:
        """Around one optimizer step."""
        if self._stepping:
            yield
            return
        self.moments.settle()
        self.collectives.settle()
        if self._continuation is not None:
            self._continuation.before_step()
        if first := optimizer not in self._stepped:
            self.adopter.expect_states_of(p for g in optimizer.param_groups for p in g["params"])
        self.adopt_state_of(optimizer)
        if first:
            # Now, too: the step may need more than there is room for.
            self.parameters = self._list_parameters(born=False)
        self.observer.moment("step", type(optimizer).__name__)
        self._stepping += 1
        try:
            # When nothing needs leasing, only the first step is watched: there, state is born.
            if self.ledger.active or first:
                self._stepped.add(optimizer)
                mode = StepMode(self.adopter, self.observer)
                self.daemon.begin(optimizer, mode.close)
                try:
                    with mode:
                        yield
                        self.daemon.finish()
                finally:
                    mode.close()
            else:
                self.daemon.begin(optimizer, lambda: None)
                yield
                self.daemon.finish()
        finally:
            self._stepping -= 1
            self.daemon.end()
        self.adopt_state_of(optimizer)
        if first:
            self.parameters = self._list_parameters(born=True)
            self.adopter.trim_all()  # Of what was expected, too.
        else:
            self.adopter.trim()
        self.moments.end_iteration()
        self.observer.end_iteration()
        if self._elastic is not None:
            self._elastic.end_iteration()
        else:
            self.ledger.refresh()  # Of host memory the daemon may withhold some, or return it.

    def adopt_state_of(self, optimizer: Optimizer) -> None:
        """Moves what the optimizer keeps for managed parameters into chunks."""
        for parameter, state in optimizer.state.items():
            if parameter in self.scope:
                self.adopter.adopt_state_of(parameter, state)

    def _list_parameters(self, *, born: bool) -> list[Parameter]:
        """What is adopted, with the states that optimizers keep, or are guessed to until then."""
        listed = []
        for parameter in self.moments.adopted():
            size_bytes = parameter.untyped_storage().nbytes()
            kept = [optimizer.state.get(parameter) for optimizer in self._stepped]
            states = tuple(t.nbytes for state in kept for t in self.adopter.managed_in(state))
            one = Parameter(size_bytes, trained=parameter.requires_grad)
            listed.append(replace(one, states=states) if born else one)
        return listed

    def _on_registration(self, _module: Any, _name: str, parameter: torch.Tensor) -> None:
        self.moments.adopt_parameter(parameter)

    def keep_steps(self, found: Note | None) -> None:
        """Publishes every step with a note, for a process that goes on after this one; goes on
        itself from the step that is `found`. REQUIRES: everything is adopted."""
        continuation = self._continuation = Continuation(self.adopter, self.daemon, found)
        handle = torch_modules.register_module_forward_pre_hook(
            lambda _module, _inputs: continuation.before_forward()
        )
        self._undo.append(handle.remove)

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        if self._continuation is not None:
            self._continuation.know(optimizer)

    def _around_profile_hook_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            hooked: Callable[..., Any] = original(step)
            return wrap_step(hooked)

        return profile_hook_step

    def _around_step_code(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _optimizer_step_code(optimizer: Optimizer) -> None:
            original(optimizer)
            self.daemon.finish()  # Before hooks look at what was stepped.

        return _optimizer_step_code

    def _around_faulthandler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enable(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            _native.reinstall_handlers()
            return result

        return enable

    def _spread_net(self) -> None:
        """Every operation from now on, in this thread and in those that it starts."""
        strict.check_visible_devices(self.client.visible_devices)
        elastic = self._elastic = Elastic(self.adopter)
        net = NetMode(self.adopter, elastic)
        net.__enter__()
        self.ledger.netted = True
        self._undo += [lambda: setattr(self.ledger, "netted", False)]
        self._undo += [lambda: net.__exit__(None, None, None)]
        starting = functools.partial(strict.starting_threads, self.adopter, elastic)
        self._wrap(threading.Thread, "start", starting)
        self._wrap(torch._tensor_str, "_str", functools.partial(strict.printing, self.adopter))
        self._wrap(torch, "compile", strict.compiling)
        self._wrap(torch.cuda.CUDAGraph, "capture_begin", strict.capturing)

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return saving_through_copies(original, self.adopter)

    def _wrap(
        self,
        owner: Any,
        name: str,
        around: Callable[[Callable[..., Any]], Callable[..., Any]],
        *,
        static: bool = False,
    ) -> None:
        original = getattr(owner, name)
        replacement: Any = around(original)
        setattr(owner, name, staticmethod(replacement) if static else replacement)
        restored = staticmethod(original) if static else original
        self._undo.append(lambda: setattr(owner, name, restored))


_current: Runtime | None = None


def current() -> Runtime | None:
    """This process's runtime, if one is started; None in a forked child."""
    return _current if _current is not None and _current.adopter.here else None


def start(client: Client, observer: Observer, *, adopt_everything: bool) -> Runtime:
    """Makes and installs the process's runtime. REQUIRES: there is none."""
    global _current
    assert _current is None
    _current = Runtime(client, observer, adopt_everything=adopt_everything)
    _current.install()
    return _current


def stop() -> None:
    """Takes the process's runtime out of torch; its client stays open."""
    global _current
    if _current is not None:
        _current.uninstall()
        _current = None


def wrap_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's step function, made to run inside `stepping` of the runtime there then is.

    Without a runtime the wrapper does nothing, so it can stay where it is.
    """
    if hasattr(step, "_memtide"):
        return step

    @functools.wraps(step)
    def stepped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        runtime = current()
        if runtime is None:
            return step(optimizer, *args, **kwargs)
        with runtime.stepping(optimizer):
            return step(optimizer, *args, **kwargs)

    stepped._memtide = True  # type: ignore[attr-defined]
    return stepped


def _wrap_known_optimizers(parent: type[Optimizer]) -> None:
    # Torch has wrapped the step of these at their first instance, so before our hooks.
    for optimizer in parent.__subclasses__():
        if hasattr(vars(optimizer).get("step"), "hooked"):
            optimizer.step = wrap_step(optimizer.step)  # type: ignore[method-assign]
        _wrap_known_optimizers(optimizer)
