"""A session's tensors move to another session: those of a process that made a model before it was
one of several ranks, as rank 0 of Lightning's ddp does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memtide._memory.adoption import adopt_gradient, adopt_state_of, restore, restore_state
from memtide._torch_hooks import runtime

if TYPE_CHECKING:
    from memtide._torch_hooks.runtime import Runtime


def change(before: Runtime, start: Callable[[], Runtime]) -> Runtime:
    """Stops the process's runtime, starts another one, moves what is in chunks to its session, and
    ends the first one. One parameter at a time is in ordinary memory, with its gradient and its
    states. REQUIRES: no module runs."""
    parameters, optimizers = before.module_hooks.adopted(), list(before.states.optimizers)
    runtime.stop()
    after = start()
    after.names.add(before.names)
    for parameter in parameters:
        for tensor in (parameter, parameter.grad):
            if tensor is not None and before.memory.addresses.manages(tensor):
                restore(before.memory, tensor)
        after.module_hooks.adopt_parameter(parameter)
        adopt_gradient(after.memory, parameter)
        for optimizer in optimizers:
            if parameter in optimizer.state:
                state = optimizer.state[parameter]
                restore_state(before.memory, state)
                adopt_state_of(after.memory, parameter, state)
    before.memory.pressure.trim_all()
    # A session with a tensor that is left lasts as long as the process.
    if not any(before.memory.arenas.bytes_by_kind().values()):
        before.client.close()
    return after
