"""Optimizer steps made by the daemon, where the states are.

When there is more than fits, a step in the client brings every chunk here and back only to touch
each element once. Instead, torch's functional optimizers (torch_updates.py) are replaced by notes
of what they were asked to do. When the optimizer's step function ends, before its post-hooks, the
daemon makes the whole step into twin chunks and publishes it: all becomes visible, or nothing.

What the daemon cannot step (small tensors outside chunks, sparse or complex ones, unlike layouts,
capturable and differentiable optimizers) is passed to torch's function at once, as are optimizers
whose step is not torch's own. When there is no room for twins, the step is made in this process
after all, and so are all later ones.

Errors of a step come out of `Optimizer.step`, with parameters, states and step counts as they were
(except tensors in chunks that torch's function has stepped: to keep them would need their room
again). One thread at a time, like the optimizers themselves.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._native import Kind
from memtide._steps import MOST_CHUNKS
from memtide.adopt import Adopter, local_part
from memtide.asked import Asked
from memtide.checkpoint_file import Checkpoint
from memtide.early_steps import EarlySteps, Made
from memtide.errors import OutOfRoom
from memtide.observer import Observer
from memtide.skipping import NotFinite, Undo
from memtide.snapshots import Snapshots
from memtide.step_calls import StepCalls
from memtide.step_pieces import Interval, Update, batches_of, copies_of
from memtide.torch_updates import (
    Arguments,
    Form,
    options_of,
    part_of,
    put_back,
    split,
    steps_as_torch,
)
from memtide.twins import Twins


class DaemonSteps:
    """Hands the steps of one client's optimizers to the daemon."""

    def __init__(self, adopter: Adopter, observer: Observer) -> None:
        self._adopter = adopter
        self._client = adopter.client
        self._observer = observer
        self.calls = StepCalls(adopter.client)
        self._twins = Twins(adopter.client)
        self._snapshots = Snapshots(adopter)
        self.early = EarlySteps(adopter, self.calls, self._twins)
        self._stepping: Optimizer | None = None
        self._release: Callable[[], None] = lambda: None
        self._asked: list[Asked] = []
        self._here_before = Undo()
        # False: every step is made in this process, to the same bits as without memtide.
        self.allowed = True
        # Also when everything fits: so that each step is published.
        self.always = False
        # What is kept with a step of this optimizer, and who hears that it is published.
        self.note: Callable[[Optimizer | None], bytes] = lambda _: b""
        self.on_published: Callable[[Optimizer | None], None] = lambda _: None
        self.here = ""  # Why something in chunks is stepped in this process; empty: nothing is.
        self.steps = 0  # Published.
        self.skipped = 0  # Had gradients that are infinite or NaN.

    def skip_non_finite(self, *, skip: bool) -> None:
        """Whether steps with gradients that are infinite or NaN are not made, as if never asked
        for. Then nothing is made early: it could count for a step that is skipped."""
        self.calls.count_non_finite = skip
        self.early.allowed = not skip

    def around(self, form: Form, original: Callable[..., None]) -> Callable[..., None]:
        """One of torch's functions, with what the daemon can do left to it."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def update(*args: Any, **kwargs: Any) -> None:
            if not self._wanted():
                original(*args, **kwargs)
                return
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self._take(form, original, bound.arguments)

        return update

    def begin(self, optimizer: Optimizer, release: Callable[[], None]) -> None:
        """An optimizer's step begins. `release` gives back what this process leases for it."""
        if self.allowed and steps_as_torch(optimizer):
            self._stepping, self._release = optimizer, release
            self._here_before = Undo()
            if not self._pressed():
                self._snapshots.write_now()
        else:
            self._note_here(optimizer)

    def finish(self) -> None:
        """Makes and publishes what was asked for since `begin`, if anything."""
        asked, self._asked = self._asked, []
        try:
            if asked:
                self._run([pair for one in asked for pair in one.pairs])
        except OutOfRoom as error:
            self._step_here(asked, error)
        except NotFinite as error:
            self._undo(asked)
            if not self.skipped:
                print(f"memtide: an optimizer's step is skipped: {error}", file=sys.stderr)
            self.skipped += 1
        except BaseException:
            self._undo(asked)
            raise
        self._here_before = Undo()

    def end(self) -> None:
        """The optimizer's step has ended. What is not finished then, as it failed, is undone."""
        self._undo(self._asked)
        self._asked = []
        self._stepping, self._release = None, lambda: None

    def write(self, checkpoint: Checkpoint) -> None:
        """Writes tensors as they are: while training goes on, or at once if that steps here."""
        self._snapshots.ask(checkpoint)
        if not self.allowed or self.here or not self.steps or not self._pressed():
            self._snapshots.write_now()

    def close(self) -> None:
        """Gives back what is kept for steps."""
        self.early.close()
        self._snapshots.write_now()
        self._snapshots.wait()
        self.calls.close()
        self._twins.free()

    def _wanted(self) -> bool:
        return (
            self._stepping is not None
            and self.allowed
            and self._adopter.here
            and self._pressed()
            and not torch.compiler.is_compiling()
        )

    def _pressed(self) -> bool:
        # What fits is stepped in place: twins would need the room of what could stay.
        wanted = self.always or self.calls.count_non_finite
        return wanted or self._adopter.overflows()

    def _take(self, form: Form, original: Callable[..., None], arguments: Arguments) -> None:
        options = options_of(form, arguments)
        if options is None:
            self._note_here(self._stepping)
            original(**arguments)
            return
        if self._is_asked_for(arguments["params"]):
            self.finish()
        found = split(form, arguments, options, self._adopter)
        count = len(arguments["params"])
        if found.indices:
            part = part_of(arguments, count, found.indices)
            self._asked.append(Asked(original, form, part, found.updates))
            self._asked[-1].count_steps(1)
        if found.rest:
            part = part_of(arguments, count, found.rest)
            changed = (t for name in ("params", *form.states) for t in part[name])
            if any(t is not None and self._adopter.manages(local_part(t)) for t in changed):
                self._note_here(self._stepping)
            if self.calls.count_non_finite:
                self._here_before.remember(form, part)
                self._here_before.count(form, part)
            else:  # What is small. Of the rest there may be more than memory has room for.
                beside = lambda t: not self._adopter.manages(local_part(t))  # noqa: E731
                self._here_before.remember(form, part, beside)
            original(**part)
            put_back(arguments, part, count, found.rest)

    def _is_asked_for(self, parameters: Sequence[torch.Tensor]) -> bool:
        asked = {p.data_ptr() for one in self._asked for p in one.parameters}
        return any(local_part(p).data_ptr() in asked for p in parameters)

    def _run(self, stepped: list[tuple[torch.Tensor, Update]]) -> None:
        began = time.monotonic()
        self._release()
        self._adopter.ledger.release_all()
        self._observer.moment("step", "daemon")
        kinds = self._written(updates := [update for _, update in stepped])
        if len(kinds) > MOST_CHUNKS:
            raise OutOfRoom(f"a step changes {len(kinds)} chunks; it may change {MOST_CHUNKS}")
        self._snapshots.before_step(kinds)
        try:
            made = self.early.take(self._stepping)
            copies = copies_of(updates, self._adopter.live(), self.calls.geometry)
            twins = self._twins_of(kinds, made)
            self._make(updates, copies, twins, made)
            self._publish(twins)
        except BaseException:
            self.early.forget()
            self._twins.free()
            raise
        if self._snapshots.wanted:
            self._twins.give_away(twins)
            self._snapshots.keep(twins)
        self.steps += 1
        self.early.learn(self._stepping, stepped, kinds, copies)
        self._observer.stepped(time.monotonic() - began, self.early.last)
        self.on_published(self._stepping)

    def _twins_of(self, kinds: dict[int, Kind], made: Made | None) -> dict[int, int]:
        if made is not None and not made.batches:
            self._twins.free()  # What is in them is nobody's.
        try:
            return self._twins.of(kinds)
        except OutOfRoom:
            if not self._snapshots.wait():
                raise
            return self._twins.of(kinds)

    def _written(self, updates: list[Update]) -> dict[int, Kind]:
        """The places that a step changes, and what they hold."""
        kinds: dict[int, Kind] = {}
        for update in updates:
            for number, span in enumerate(update.written):
                kind = Kind.OPTIMIZER_STATE if number else Kind.PARAMETER
                size_bytes = update.elements * span.item_bytes
                for place in self._adopter.places_of(span.address, size_bytes):
                    kinds.setdefault(place, kind)
        return kinds

    def _make(
        self,
        updates: list[Update],
        copies: dict[int, list[Interval]],
        twins: dict[int, int],
        made: Made | None,
    ) -> None:
        cuts = made.plan.cuts if made is not None and made.batches else ()
        batches = batches_of(updates, copies, self.calls.geometry, self.calls.most_chunks, cuts)
        non_finite = self.calls.make(self.early.left(made, batches, twins), twins)
        if self.calls.count_non_finite and (
            non_finite := non_finite + self._here_before.non_finite
        ):
            raise NotFinite(f"{non_finite} elements of its gradients are infinite or NaN")

    def _publish(self, twins: dict[int, int]) -> None:
        self._client.publish(
            self._client.published()[0] + 1,
            list(twins),
            list(twins.values()),
            self.note(self._stepping),
            keep=self._snapshots.wanted and bool(twins),
        )

    def _note_here(self, optimizer: Optimizer | None) -> None:
        """From now on this process changes chunks in place. REQUIRES: it has not begun to."""
        self._snapshots.write_now()
        if self.here:
            return
        self.here = f"{type(optimizer).__name__} steps in the script's process"
        if self.always:  # The last note would be of chunks that are no longer as it says.
            try:
                self._publish({})
            except BaseException:
                self.here = ""  # So that nothing is changed before it could be said.
                raise

    def _step_here(self, asked: list[Asked], error: OutOfRoom) -> None:
        self.allowed = False
        self.early.close()
        self._twins.free()
        try:
            self._note_here(self._stepping)
        except BaseException:
            self._undo(asked)
            raise
        print(f"memtide: optimizers step in this process from now on: {error}", file=sys.stderr)
        for one in asked:
            one.count_steps(-1)
            one.redo()

    def _undo(self, asked: list[Asked]) -> None:
        states = self._stepping.state if self._stepping is not None else {}
        for one in asked:
            one.count_steps(-1)
            for parameter, update in one.pairs:
                if update.options.fresh_states:
                    states.get(parameter, {}).pop("momentum_buffer", None)
        self._here_before.undo(states)
        self._here_before = Undo()
