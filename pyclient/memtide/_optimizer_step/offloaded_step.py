"""Optimizer steps that are computed in parts, in host memory, where the states are.

When the chunks do not fit, a whole step in the script's thread fetches and evicts every chunk only
to change each element once. Instead, calls of torch's functional optimizers (torch_functional.py)
are deferred. When the optimizer's step function ends, before its post-hooks, the whole step is
computed into shadow chunks and committed: all of it becomes visible, or nothing
(docs/decisions/0013).

Torch's own functions compute the parts, in threads of this process, with the bits of a plain step
on a CPU (torch_kernels.py, docs/decisions/0031). With tensors on a GPU torch steps in place, as
CUDA's functions have bits of their own; in parts only with a named job, and where steps may be
skipped.

Steps without parts (of small tensors outside chunks, of sparse or complex ones, of unlike layouts,
of capturable and differentiable optimizers) are passed to torch's function at once, as are
optimizers whose step is not torch's own. When there is no room for shadow chunks, the script's
thread makes the step after all, and all later ones.

`Optimizer.step` raises the errors of a step, with parameters, states and step counts as they were
before. Tensors in chunks that torch's function has stepped are not restored: copies of them would
need as much memory again.

Threads: each may step optimizers of its own. From the moment when two do, torch's functions make
each whole step.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from memtide._checkpoint.safetensors_file import Checkpoint
from memtide._daemon.training import Training
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_parts import is_sharded, local_part
from memtide._optimizer_step.accesses import accesses_of, collisions
from memtide._optimizer_step.committed_job import CommittedJob
from memtide._optimizer_step.deferred_update import DeferredUpdate
from memtide._optimizer_step.present_step import PresentStep
from memtide._optimizer_step.rollback import NotFinite, Undo
from memtide._optimizer_step.split import part_of, put_back, split
from memtide._optimizer_step.step_in_parts import StepInParts, Written
from memtide._optimizer_step.torch_functional import (
    Arguments,
    FunctionalSignature,
    next_single_numbers,
    steps_as_torch,
    torch_options_of,
)
from memtide._optimizer_step.torch_options import TorchOptions
from memtide._telemetry.observer import Observer
from memtide._util.program_capture import is_captured
from memtide.errors import MemtideError, ResourceExhausted

# A rank that has nothing in common with others after that many steps goes on like a process that is
# alone.
_LOOKS_FOR_EQUALS = 3


class OffloadedSteps:
    """Computes the steps of one client's optimizers in parts."""

    def __init__(
        self,
        memory: ManagedMemory,
        observer: Observer,
        training: Training | None = None,
        *,
        job: CommittedJob | None = None,
        around_rest: Callable[[Arguments], AbstractContextManager[None]],
        name_at: Callable[[int], str],
    ) -> None:
        """`training`: that of which this process is one of several ranks. `job`: the one in which
        each step is committed; None: only steps that do not fit are. `around_rest`: around torch's
        function for what has no parts. `name_at`: the name of the parameter at an address."""
        self._memory = memory
        self._addresses = memory.addresses
        self._training = training
        self._present = PresentStep()
        self.parts = StepInParts(memory, observer, training, job, self._present, name_at)
        self.calls = self.parts.calls
        self.checkpoints = self.parts.checkpoints
        self.speculative = self.parts.speculative
        # By the optimizer, the thread that has stepped it last.
        self._threads: weakref.WeakKeyDictionary[Optimizer, threading.Thread] = (
            weakref.WeakKeyDictionary()
        )
        self._in_parts = threading.RLock()  # Held while a step is made in parts and committed.
        # Functions that give other bits in parts, and optimizers that have none, as said.
        self._named: set[str] = set()
        # False: torch's functions make each whole step, in the thread that calls them.
        self.allowed = True
        # True: also when everything fits, so that each step is committed.
        self.always = job is not None
        self.on_host = False  # True: also steps of tensors on a GPU, as the user asks.
        self.could_be_in_parts = False  # A step was made whole that could have been in parts.
        self.around_rest = around_rest
        self._has_said_undone = False
        self.skipped = 0  # Steps that were skipped, as a gradient was infinite or NaN.

    def skip_non_finite(self, *, skip: bool) -> None:
        """Sets whether steps with infinite or NaN gradients are skipped. If so, no step part is
        speculative, since it could count for a step that is skipped."""
        self.calls.count_non_finite = skip
        self.speculative.allowed = not skip

    def train_stage(self, *, alone: bool) -> None:
        """This rank trains one stage of a model, and that others differ is not said. `alone`: none
        has the same stage, so that ranks need not be compared."""
        if self.calls.ranks is not None:
            self.calls.ranks.on_difference = None
        if alone:
            self.calls.ranks = None

    def around(
        self, form: FunctionalSignature, original: Callable[..., None]
    ) -> Callable[..., None]:
        """A replacement of one of torch's functions that defers what can be computed in parts."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def update(*args: Any, **kwargs: Any) -> None:
            if not self._wanted():
                self.could_be_in_parts |= self._present.optimizer is not None
                original(*args, **kwargs)
                return
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self._take(form, original, bound.arguments)

        return update

    def begin(self, optimizer: Optimizer, release: Callable[[], None]) -> None:
        """Begins an optimizer's step. `release` ends the leases that this process has for it."""
        self.see_thread(optimizer)
        self._present.is_committed = False
        if self.allowed and steps_as_torch(optimizer):
            self._present.optimizer, self._present.release = optimizer, release
            self.calls.shares = self._may_share(optimizer)
            if self.calls.shares:
                self.speculative.allowed = False
            self._present.undo = Undo()
            if not self._prefers_parts():
                self.checkpoints.write_now()
        else:
            self._say_whole(optimizer)
            self._note_here(optimizer)

    def see_thread(self, optimizer: Optimizer | None = None) -> None:
        """Called before a thread steps an optimizer, or moves a tensor into a chunk. While another
        thread that lives steps another optimizer, no step is made in parts: a commit exchanges
        whole chunks, and would undo what is written to their other tensors meanwhile."""
        if not self.allowed:
            return
        thread = threading.current_thread()
        with self._in_parts:
            if any(
                other is not optimizer and its is not thread and its.is_alive()
                for other, its in self._threads.items()
            ):
                self._end_parts("several threads train", optimizer)
            if optimizer is not None:
                self._threads[optimizer] = thread

    def finish(self) -> None:
        """Computes and commits the updates that were deferred since `begin`, if there are any."""
        updates = self._present.deferred.take()
        try:
            if updates:
                self._run_or_redo(updates)
            elif self.calls.count_non_finite and (count := self._present.undo.non_finite):
                raise NotFinite(count)
        except (ResourceExhausted, Written) as error:
            self._step_here(updates, error)
        except NotFinite as error:
            self._undo(updates)
            if not self.skipped:
                print(f"memtide: an optimizer's step is skipped: {error}", file=sys.stderr)
            self.skipped += 1
        except BaseException as error:
            if updates and not isinstance(error, MemtideError):
                self._say_undone()
            self._undo(updates)
            raise
        self._present.undo = Undo()
        if self.parts.has_ranks and not self._present.is_committed:
            # Counts as a step: the batch is not to be trained with again, as other ranks' are not.
            self.parts.commit(self._present.optimizer, {}, with_all_ranks=True)
            self.parts.job.committed(self._present.optimizer)
        if updates and self.allowed and self.calls.shares:
            self.parts.share_unstepped()
            if self.parts.steps == _LOOKS_FOR_EQUALS:
                self._look_for_equals()

    def _run_or_redo(self, updates: list[DeferredUpdate]) -> None:
        with self._in_parts:
            if self.allowed:
                self.parts.run([pair for deferred in updates for pair in deferred.pairs])
                # As torch's functions do: a graph that has saved a parameter of before is no good
                # now, and a script may ask a state whether it has changed.
                increment_version([t for deferred in updates for t in deferred.written])
                return
        _redo(updates)  # Another thread trains since they were deferred.

    def _look_for_equals(self) -> None:
        # Ranks may train different models, and then digests and parts would be in vain.
        job_id = self._memory.client.properties.job_id
        if self._training is not None and not self._training.shares_contents(job_id):
            self.calls.ranks = None

    def end(self) -> None:
        """Ends the optimizer's step. If it failed, updates that are still deferred are undone."""
        if self._present.deferred.updates:
            self._say_undone()
        self._undo(self._present.deferred.take())
        self._present.reset()

    def _say_undone(self) -> None:
        """Says once that a step which the script's own error has ended is undone."""
        if not self._has_said_undone:
            self._has_said_undone = True
            print(
                f"memtide: a step of {type(self._present.optimizer).__name__} raised an error, and "
                "is undone: parameters and states are as before it. Plain torch leaves what it had "
                "stepped by then, so that results differ from here on (docs/stability.md)",
                file=sys.stderr,
            )

    def write(self, checkpoint: Checkpoint) -> None:
        """Writes the tensors' present content: beside training, from the shadow chunks of the next
        step, or at once if there is none because this process steps."""
        self.checkpoints.request(checkpoint)
        if not self.allowed or self.parts.here or not self.parts.steps or not self._prefers_parts():
            self.checkpoints.write_now()

    @property
    def in_parts(self) -> bool:
        """Whether the next step is computed in parts, as far as it can be."""
        return self.allowed and self._prefers_parts()

    def _wanted(self) -> bool:
        return (
            self._present.optimizer is not None
            and self.allowed
            and self._addresses.here
            and self._prefers_parts()
            and not is_captured()
        )

    def _may_share(self, optimizer: Optimizer) -> bool:
        """Whether ranks may step the same parameters. Parts that are made before gradients are
        reduced would be of no use then."""
        if self.calls.ranks is None or self.calls.count_non_finite:
            return False
        return not any(is_sharded(p) for g in optimizer.param_groups for p in g["params"])

    def _prefers_parts(self) -> bool:
        # Chunks that fit are stepped in place, which is faster: shadow chunks would evict other
        # chunks. So are steps on a GPU, unless the daemon is asked for something else with them.
        # Ranks make a step once in parts, and have its results once.
        wanted = self.always or self.on_host or self.calls.count_non_finite or self.calls.shares
        return wanted or (self.calls.has_plain_bits and self._memory.pressure.overflows())

    def _take(
        self, form: FunctionalSignature, original: Callable[..., None], arguments: Arguments
    ) -> None:
        used = accesses_of(form, arguments)
        if self._present.deferred.used.meet(used):
            self.finish()
            used = accesses_of(form, arguments)
        options = torch_options_of(
            form, original, arguments, has_plain_bits=self.calls.has_plain_bits
        )
        if options is None:
            self._say_whole(self._present.optimizer)
            self._note_here(self._present.optimizer)
            self._step_rest(form, original, arguments)
            return
        numbers = next_single_numbers(form, options, arguments)
        can_make = functools.partial(self._can_make, form)
        common = set().union(*collisions(used))
        split_update = split(form, arguments, options, self._memory, numbers, can_make, common)
        count = len(arguments["params"])
        if split_update.indices:
            part = part_of(arguments, count, split_update.indices)
            update = DeferredUpdate(original, form, part, split_update.updates)
            self._present.deferred.add(update)
            update.count_steps(1)
        if split_update.rest:
            part = part_of(arguments, count, split_update.rest)
            changed = (t for name in ("params", *form.states) for t in part[name])
            if any(t is not None and self._addresses.manages(local_part(t)) for t in changed):
                self._say_whole(self._present.optimizer)
                self._note_here(self._present.optimizer)
            self._step_rest(form, original, part)
            put_back(arguments, part, count, split_update.rest)

    def _step_rest(
        self, form: FunctionalSignature, original: Callable[..., None], part: Arguments
    ) -> None:
        """Steps what has no parts, in a way that can be undone."""
        if self.calls.count_non_finite:
            self._present.undo.remember(form, part)
            self._present.undo.count(form, part)
        else:
            # Copies only what is in ordinary memory: of managed tensors there may be more than fits
            # twice.
            beside = lambda t: not self._addresses.manages(local_part(t))  # noqa: E731
            self._present.undo.remember(form, part, beside)
        with self.around_rest(part):
            original(**part)

    def _can_make(self, form: FunctionalSignature, options: TorchOptions, tensors: int) -> bool:
        """Whether parts of such a step have the right bits. If not, says so, once a function."""
        if self.calls.can_make(options, tensors):
            return True
        if form.name not in self._named:
            self._named.add(form.name)
            print(
                f"memtide: torch {torch.__version__} gives other bits in parts for {form.name} on "
                "this processor, so its steps stay in the script's thread",
                file=sys.stderr,
            )
        return False

    def _say_whole(self, optimizer: Optimizer | None) -> None:
        """Says once an optimizer's class that it steps on the GPU, where the host was asked for."""
        name = type(optimizer).__name__
        if self.on_host and name not in self._named:
            self._named.add(name)
            print(
                f"memtide: --optimizer-on host: {name} has steps that cannot be made in parts, "
                "which the GPU makes (docs/optimizers.md says which)",
                file=sys.stderr,
            )

    def _note_here(self, optimizer: Optimizer | None) -> None:
        """Records that the script's thread will change chunks in place. REQUIRES: it has not begun
        to."""
        self.checkpoints.write_now()
        if self.parts.here:
            return
        self.parts.here = f"{type(optimizer).__name__} steps in the script's thread"
        if self.always:  # The last manifest does not hold for changed chunks; commits another one.
            try:
                self.parts.commit(None, {})
            except BaseException:
                self.parts.here = ""  # Nothing changes before the new manifest is committed.
                raise

    def _step_here(self, updates: list[DeferredUpdate], error: Exception) -> None:
        try:
            with self._in_parts:
                if self.allowed:
                    self._end_parts(str(error), self._present.optimizer)
        except BaseException:
            self._undo(updates)
            raise
        _redo(updates)

    def _end_parts(self, why: str, optimizer: Optimizer | None) -> None:
        """Leaves all later steps to the threads of the script. `optimizer`: makes the first one."""
        is_news = self.parts.steps > 0 or self._prefers_parts()
        self.allowed = False
        self.speculative.close()
        self.parts.shadows.free()
        self._note_here(optimizer)
        if is_news:
            print(
                f"memtide: optimizers step in the script's thread from now on: {why}",
                file=sys.stderr,
            )

    def _undo(self, updates: list[DeferredUpdate]) -> None:
        states = self._present.optimizer.state if self._present.optimizer is not None else {}
        for deferred in updates:
            deferred.count_steps(-1)
            for parameter, update in deferred.pairs:
                if update.options.fresh_states:
                    states.get(parameter, {}).pop("momentum_buffer", None)
        self._present.undo.undo(states)
        self._present.undo = Undo()


def _redo(updates: list[DeferredUpdate]) -> None:
    for deferred in updates:
        deferred.count_steps(-1)
        deferred.redo()
