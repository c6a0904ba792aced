"""Resumes a named job. Each step is committed with a manifest, and a new process that has built the
same model and optimizers takes parameters and states over from the last committed step.

State outside of optimizers is not resumed: buffers of modules, schedules, the position in the data,
random numbers. A script calls `memtide.resumed_step()` and restores these itself.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from memtide._daemon import training
from memtide._memory.adoption import adopt_state_of, move_to, ordinary_tensors
from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.committed_job import CommittedJob
from memtide._resume.manifest_writer import ManifestWriter, matches, parameters_of, small, type_of
from memtide._resume.restored_storages import RestoredStorages
from memtide._resume.step_manifest import SavedOptimizer, SavedTensor, StepManifest
from memtide._util.step_phase import Step, StepPhase
from memtide.errors import FailedPrecondition

if TYPE_CHECKING:
    from memtide._resume.agree_across_nodes import Exchange


class ResumedJob(CommittedJob, StepPhase):
    """Counts the steps of one process's optimizers, from where the process before it ended, and
    restores what that one committed. Used by one thread."""

    def __init__(self, memory: ManagedMemory, manifest: StepManifest | None) -> None:
        self._memory = memory
        self._client = memory.client
        self._training = training.own_id()
        self._group = manifest.group if manifest is not None else self._training
        self._exchange: Exchange | None = None  # With other nodes.
        self._writer = ManifestWriter(memory)
        self._manifest = manifest
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._is_resumed = False
        self._restored: RestoredStorages | None = None  # Held until a step is committed.

    def go_on_from(self, exchange: Exchange) -> None:
        """The nodes have agreed. FailedPrecondition: this process has resumed something already."""
        if self._is_resumed:
            raise FailedPrecondition(
                "a model was used before torch.distributed.init_process_group, where nodes agree "
                "on the step from which they go on: call that first"
            )
        self._manifest, self._exchange = exchange.manifest, exchange
        self._group = exchange.agreement.group

    def know(self, optimizer: Optimizer) -> None:
        """Registers an optimizer that was created or has got another parameter group."""
        if optimizer not in self._steps:
            self._optimizers.append(weakref.ref(optimizer))
            self._steps[optimizer] = 0

    def before_forward(self) -> None:
        """Resumes the job before a module is used, if all its optimizers have been created."""
        if self._manifest is not None and len(self._alive()) >= len(self._manifest.optimizers):
            self._resume()

    def before_step(self, step: Step) -> None:
        """Resumes the job before an optimizer steps. FailedPrecondition: the job has more
        optimizers than were created."""
        if self._manifest is None:
            return
        if len(self._alive()) < len(self._manifest.optimizers):
            raise FailedPrecondition(
                f"the resumed job has {len(self._manifest.optimizers)} optimizers, and this script "
                f"has made {len(self._alive())} before its first step"
            )
        self._resume()

    def _alive(self) -> list[Optimizer]:
        return [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]

    @ordinary_tensors()  # The first forward pass may be that of an evaluation.
    def _resume(self) -> None:
        manifest, self._manifest = self._manifest, None
        assert manifest is not None
        self._is_resumed = True
        resumed = list(zip(manifest.optimizers, self._alive(), strict=False))
        for saved, optimizer in resumed:
            _check_same(saved, optimizer)
            self._steps[optimizer] = saved.steps
        exchange = self._exchange
        if exchange is not None and (exchange.sends or exchange.receives):
            exchange.check(optimizer for _, optimizer in resumed)
        if exchange is not None and exchange.receives:
            for saved, optimizer in resumed:
                self._receive(saved, optimizer, exchange)
            return
        self._restored = RestoredStorages(self._memory, manifest)
        for saved, optimizer in resumed:
            self._restore(saved, optimizer, self._restored)
            if exchange is not None and exchange.sends:
                self._send(saved, optimizer, exchange)

    def _send(self, saved: SavedOptimizer, optimizer: Optimizer, exchange: Exchange) -> None:
        for parameter, its in zip(parameters_of(optimizer), saved.parameters, strict=True):
            state = optimizer.state[parameter]
            tensors = {**its.states, "": its.parameter}
            for name, saved_tensor in tensors.items():
                if saved_tensor.offset_bytes >= 0:
                    tensor = state[name] if name else parameter.detach()
                    # The layout is that of the manifest.
                    copy = _dense(saved_tensor)
                    exchange.broadcast(copy.copy_(tensor))

    def _receive(self, saved: SavedOptimizer, optimizer: Optimizer, exchange: Exchange) -> None:
        """As _restore, with what another rank sends."""
        self._memory.arenas.lay_out(parameters_of(optimizer))
        for parameter, its in zip(parameters_of(optimizer), saved.parameters, strict=True):
            received = {
                name: (
                    small(saved_tensor, parameter.device)
                    if saved_tensor.offset_bytes < 0
                    else _received(saved_tensor, exchange)
                )
                for name, saved_tensor in {**its.states, "": its.parameter}.items()
            }
            parameter.data.copy_(received.pop(""))
            if received or its.values:
                state = optimizer.state[parameter]
                state.update({**its.values, **received})
                adopt_state_of(self._memory, parameter, state)

    def _restore(
        self, saved: SavedOptimizer, optimizer: Optimizer, restored: RestoredStorages
    ) -> None:
        for parameter, saved_parameter in zip(
            parameters_of(optimizer), saved.parameters, strict=True
        ):
            with torch.no_grad():
                if saved_parameter.parameter.offset_bytes < 0:
                    parameter.data.copy_(small(saved_parameter.parameter, parameter.device))
                elif not move_to(
                    self._memory, parameter, restored.storage(saved_parameter.parameter)
                ):
                    parameter.data.copy_(self._tensor(saved_parameter.parameter, restored))
                state = (
                    optimizer.state[parameter]
                    if saved_parameter.states or saved_parameter.values
                    else {}
                )
                state.update(saved_parameter.values)
                for name, saved_state in saved_parameter.states.items():
                    if saved_state.offset_bytes < 0:
                        state[name] = small(saved_state, parameter.device)
                    else:
                        state[name] = self._tensor(saved_state, restored)

    def _tensor(self, saved: SavedTensor, restored: RestoredStorages) -> torch.Tensor:
        empty = torch.empty(0, dtype=type_of(saved), device=self._memory.addresses.device)
        return empty.set_(restored.storage(saved), 0, saved.shape, saved.stride)

    def manifest_bytes(self, stepping: Optimizer | None, lost: str) -> bytes:
        most_bytes = self._client.limits.step_manifest_bytes
        if lost:
            return self._signed(StepManifest(lost=lost)).to_bytes(most_bytes)
        counted = [
            (optimizer, self._steps[optimizer] + int(optimizer is stepping))
            for optimizer in self._alive()
        ]
        return self._signed(self._writer.manifest(counted)).to_bytes(most_bytes)

    def _signed(self, manifest: StepManifest) -> StepManifest:
        return replace(manifest, training=self._training, group=self._group)

    def committed(self, stepping: Optimizer | None) -> None:
        if stepping is not None:
            self._steps[stepping] = self._steps.get(stepping, 0) + 1
        # The job can be resumed from the new step: storages that no tensor here uses can go.
        self._restored = None


def _dense(saved: SavedTensor) -> torch.Tensor:
    return torch.empty_strided(saved.shape, saved.stride, dtype=type_of(saved))


def _received(saved: SavedTensor, exchange: Exchange) -> torch.Tensor:
    tensor = _dense(saved)
    exchange.broadcast(tensor)
    return tensor


def _check_same(saved: SavedOptimizer, optimizer: Optimizer) -> None:
    parameters = parameters_of(optimizer)
    if type(optimizer).__name__ != saved.name:
        raise FailedPrecondition(
            f"the job's states are those of {saved.name}, and the script's optimizer in its "
            f"place is {type(optimizer).__name__}"
        )
    if len(parameters) != len(saved.parameters):
        raise FailedPrecondition(
            f"the job's {saved.name} has {len(saved.parameters)} parameters, and the script's "
            f"{type(optimizer).__name__} has {len(parameters)}"
        )
    for number, (parameter, saved_parameter) in enumerate(
        zip(parameters, saved.parameters, strict=True)
    ):
        if not matches(saved_parameter.parameter, parameter):
            raise FailedPrecondition(
                f"{_name_of(optimizer, number)} is {list(parameter.shape)} "
                f"{parameter.dtype}, and in the job {saved_parameter.parameter.layout()}"
            )


def _name_of(optimizer: Optimizer, number: int) -> str:
    """A human-readable name of a parameter."""
    names = [
        name
        for group in optimizer.param_groups
        for name in group.get("param_names", [""] * len(group["params"]))
    ]
    called = f" ({names[number]})" if names[number] else ""
    return f"parameter {number}{called} of {type(optimizer).__name__}"
