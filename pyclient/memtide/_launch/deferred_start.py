"""Starts the runtime when the script imports torch, and imports torch only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memtide._activations.budget import Budget
from memtide._activations.plan import ActivationPlan
from memtide._activations.profile import ActivationProfile
from memtide._capi.client import Client
from memtide._daemon.training import Training
from memtide._launch.sharing import LayerSharing, Sharing
from memtide._memory.chunk_size import Parameter
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.around_step.stepping import Stepping
from memtide._trace.allocator import AllocatorRecord
from memtide._util.import_hook import after_import

if TYPE_CHECKING:
    import torch

    from memtide._resume.agree_across_nodes import Exchange
    from memtide._torch_hooks.runtime import Runtime

_runtime: Runtime | None = None
_shared_layers: LayerSharing | None = None


def install(
    client: Client,
    observer: Observer,
    stepping: Stepping,
    budget: Budget | None = None,
    say: Callable[[str], None] = lambda _: None,
    training: Training | None = None,
    shares_contents: bool = False,
    sharing: Sharing | None = None,
    activations: Sequence[str] = (),
) -> None:
    """Starts the runtime when torch is imported, or at once if it is imported already.

    From then on, states are put into chunks. A session that was installed before ends, and what is
    in its chunks moves to this one's (REQUIRES then: no module runs). With a `budget`, activations
    are kept as far as it allows, and `say` is called with each plan for them, in a line.
    `training`: that of which this process is one of several ranks. `shares_contents`: as in
    `runtime.start`. `sharing`: layers that share, from when they are trained on.
    `activations`: what a plan chooses for each block that the model repeats, in their order.
    """

    def start() -> Runtime:
        from memtide._activations.choices_by_block import ChoicesByBlock
        from memtide._torch_hooks import runtime

        global _shared_layers
        if sharing is not None and _shared_layers is None:
            _shared_layers = sharing.start(say)
        return runtime.start(
            client,
            observer,
            adopt_everything=True,
            chosen=ChoicesByBlock(activations, say) if activations else None,
            training=training,
            shares_contents=shares_contents,
            first_phases=() if _shared_layers is None else (_shared_layers,),
            stepping=stepping,
            budget=budget,
            say=say,
        )

    def torch_imported() -> None:
        global _runtime
        if _runtime is None:
            _runtime = start()
        else:
            from memtide._torch_hooks import session_change

            _runtime = session_change.change(_runtime, start)

    after_import("torch", torch_imported)


def go_on_from(exchange: Exchange) -> None:
    """The nodes have agreed on what the job goes on from. REQUIRES: torch is imported, and steps
    are committed."""
    assert _runtime is not None
    _runtime.go_on_from(exchange)


def end() -> bool:
    """Removes all hooks from torch and ends the session. Returns False, and does nothing, if torch
    has not been imported. REQUIRES: no tensor is in chunks."""
    global _runtime, _shared_layers
    from memtide._torch_hooks import runtime

    if _runtime is None:
        return False
    runtime.stop()
    _runtime.client.close()
    _runtime = _shared_layers = None
    return True


def shared_layers() -> LayerSharing | None:
    """The layers that share by the options of the run; None: none do, or the script has no
    parameter yet."""
    return _shared_layers


def is_in_chunks() -> Callable[[torch.Tensor], bool] | None:
    """Whether a tensor is in chunks of this process, or of the one that it was forked from; None:
    there are none."""
    return _runtime.memory.addresses.manages if _runtime is not None else None


def parameters_in(start: int, end: int) -> list[str]:
    """The names of the parameters that have bytes in [start, end), as far as they are known."""
    return _runtime.names.parameters_in(start, end) if _runtime is not None else []


def planned_activations() -> tuple[ActivationProfile, ActivationPlan] | None:
    """The latest plan of activations, and the profile that it was made of; None: there is none."""
    plans = _runtime.searched_plans if _runtime is not None else None
    return plans.latest if plans is not None else None


def recorded_blocks() -> AllocatorRecord | None:
    """The record of torch's allocator over a few iterations, until now; None: there is none."""
    blocks = _runtime.blocks if _runtime is not None else None
    return blocks.finish() if blocks is not None else None


def bytes_by_kind() -> dict[str, int]:
    """Bytes of the chunks that hold the script's tensors, by kind (inspection.KINDS)."""
    if _runtime is None:
        return {}
    return {kind.name.lower(): n for kind, n in _runtime.memory.arenas.bytes_by_kind().items()}


def parameters() -> list[Parameter]:
    """The parameters that the runtime trained; none if torch was not imported."""
    return _runtime.states.parameters if _runtime is not None else []


def expected_parameters() -> list[Parameter]:
    """As `parameters`, but also before the first step (SteppedStates.expected_parameters)."""
    return _runtime.states.expected_parameters() if _runtime is not None else []
