"""The public functions: `offload` and `close`, memtide in a script that starts without it;
`checkpoint` and `load_checkpoint`; `activations`, for parts of a model; and `hold`, for a script's
own kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch

from memtide._activations.budget import budget_of
from memtide._activations.script_choices import choice_of_part, choices_of
from memtide._checkpoint import safetensors_file
from memtide._checkpoint.safetensors_file import Checkpoint, entries_of
from memtide._daemon.connect import Connection, SessionRequest, connect
from memtide._daemon.memory_budget import MemoryBudget
from memtide._daemon.private_daemon import Pools
from memtide._memory.chunk_size import Parameter
from memtide._memory.hold import holding
from memtide._offloaded import Offloaded, Offloading
from memtide._telemetry.recorder import Recorder
from memtide._torch_hooks import runtime as runtimes
from memtide._util.program_capture import is_captured
from memtide._util.sizes import format_size, parse_size
from memtide.errors import FailedPrecondition, UsageError

_connection: Connection | None = None
_offloading: Offloading | None = None
_sizes: dict[str, int | None] = {}  # By argument of `offload`, in the call that has connected.

# The script's choices for saved tensors; docs/activations.md.
ActivationChoice = Literal["plan", "keep", "move", "recompute"]


def offload(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
    *,
    device_pool: str | int | None = None,
    host_pool: str | int | None = None,
    ssd_pool: str | int | None = None,
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    chunk_size: str | int = 0,
    activations: ActivationChoice | Mapping[str, ActivationChoice] = "plan",
) -> Offloaded:
    """Moves a model's states to memtide's chunks, where they stay while the model trains.

    Parameters move during this call; gradients and optimizer state move when torch creates them.
    The training loop needs no change. Optimizers that are created later need not be passed.

    Where the states do not fit into memory, torch's own functions compute optimizer steps in parts,
    beside training, with the same bits as without memtide; docs/optimizers.md says which.

    `device_memory` and `host_memory` limit all that this process and its private daemon use
    together, activations included; docs/budget.md has more. Each excludes the pool of its memory.

    Sizes are numbers of bytes, or texts such as "2GiB". If no pool and no limit is given and the
    node's daemon answers, the session is with that daemon. Otherwise a private daemon starts, and
    ends with this process. Without `chunk_size`, the best size for the model's parameters is
    searched. A process has one session, so pools, limits and chunk size of the first call hold for
    later ones, also after `memtide.close`. A later call adds its model to those that are offloaded;
    a model that is collected leaves. `close` of a handle moves its model back, and `memtide.close`
    all of them.

        model = build_model()
        optimizer = torch.optim.AdamW(model.parameters())
        with memtide.offload(model, optimizer, host_pool="2GiB"):
            train(model, optimizer)

    `activations` says what is done with what autograd saves for backward. No choice changes a bit.

    - "plan": it leaves for chunks, or is recomputed, where a budget is short. Without a budget, all
      stays.
    - "keep": it stays in the script's own memory, and counts as the script's own.
    - "move": it leaves for chunks as soon as nothing else uses it, without a budget, too. Tensors
      of less than 1 KiB stay.
    - "recompute": repeated blocks run again in backward, each that can be recomputed exactly, from
      the third iteration on; the first two find that out. The rest is as under "plan".

    Or a mapping from names of modules, as `model.named_modules()` has them, to these words: what is
    saved within a call of such a module, in the thread that calls it, is treated so. Names are
    patterns of fnmatch, in which "*" also matches dots, and a match counts for all that the module
    contains; the first match wins. A module that matches nothing is as under "plan". A module that
    is to be recomputed is one block, repeated or not.

        memtide.offload(model, optimizer, activations={"head": "keep", "layers.*": "recompute"})

    UsageError: a word is none of these, or a pattern has no effect: it matches no module, or only
    those that earlier patterns match, or what lies in a module that is to be recomputed; or another
    model is offloaded, whose choices are those of the process; or a later call names
    another size than the first. FailedPrecondition: `memtide run` manages the process.
    """
    global _connection, _offloading
    sizes = {
        "device_pool": _bytes(device_pool),
        "host_pool": _bytes(host_pool),
        "ssd_pool": _bytes(ssd_pool),
        "device_memory": _bytes(device_memory),
        "host_memory": _bytes(host_memory),
        "chunk_size": _bytes(chunk_size) or None,
    }
    if _connection is not None:
        _check_sizes(sizes)
    chosen = choices_of(model, activations)
    optimizers = _listed(optimizer)
    if _offloading is not None and _offloading.is_open:
        if chosen.are_made:
            raise UsageError(
                "activations: the choices of a process are those of its first model: call "
                "memtide.close() before, or memtide.activations() in the forward pass"
            )
        _offloading.add(model, optimizers)
        return Offloaded(_offloading, model, optimizers)
    if runtimes.current() is not None:
        raise FailedPrecondition(
            "`memtide run` manages this process, all of its models: leave out memtide.offload"
        )
    if _connection is None:
        _connection = _connect(model, sizes)
        _sizes.update(sizes)
    recorder = Recorder(_connection.client, _connection.socket_dir)
    budget = budget_of(_connection)
    runtime = runtimes.start(
        _connection.client,
        recorder,
        adopt_everything=False,
        chosen=chosen,
        shares_contents=_connection.shares_contents,
        budget=budget,
    )
    _offloading = Offloading(runtime, recorder, budget)
    _offloading.add(model, optimizers)
    return Offloaded(_offloading, model, optimizers)


def close() -> None:
    """Moves all models that `offload` has moved back to ordinary memory, and removes the hooks from
    torch. Nothing happens where none is offloaded, nor under `memtide run`.

    A notebook whose handles are gone ends memtide so:

        memtide.close()
    """
    if _offloading is not None:
        _offloading.close()


def checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Checkpoint:
    """Writes the model's present state_dict to a safetensors file.

    With an optimizer, the file also has the tensors of its state_dict, with names of the form
    `optimizer.state.<index>.<name>`.

    Where steps are in parts, training goes on while the file is written. `written_bytes` and
    `total_bytes` of the result are its progress, and `wait()` returns when the file is complete;
    if `wait()` is called before the next step, it writes the file itself. The script must not
    change parameters and states until that next step.

        saved = memtide.checkpoint("model.safetensors", model)
        train_one_epoch(model, optimizer)  # Meanwhile, the file is written.
        saved.wait()

    `model.load_state_dict(memtide.load_checkpoint("model.safetensors"))` loads it again. The file
    replaces one of its name only when it is complete and on stable storage.
    """
    runtime = runtimes.current()
    tensors = [(name, t) for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)]
    if optimizer is not None:
        tensors += [
            (f"optimizer.state.{index}.{name}", value)
            for index, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        ]
    file = Path(path).absolute()
    if runtime is not None:
        entries = entries_of(tensors, runtime.memory.addresses.manages)
        offloaded = runtime.offloaded
        checkpoint_file = Checkpoint(file, entries, offloaded.checkpoints.write_if_awaited)
        offloaded.write(checkpoint_file)
    else:
        checkpoint_file = Checkpoint(file, entries_of(tensors, lambda _: False))
        checkpoint_file.write(lambda _address, _size_bytes: iter(()))
    if checkpoint_file.done:
        checkpoint_file.wait()  # Raises the error that writing the file raised.
    return checkpoint_file


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a file that `memtide.checkpoint` has written, by name, in host memory.

    DataLoss: the bytes of the file are not those that were written.
    """
    return safetensors_file.load(Path(path))


def hold(
    tensors: torch.Tensor | Iterable[torch.Tensor], *, write: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Keeps tensors where kernels can use them by their addresses, during a `with` block.

    On a GPU, memtide gives each operation of torch the memory of its tensors. It cannot see kernels
    that take addresses past torch's dispatcher: Triton's, CuPy's, Numba's, an extension's. In this
    block they may be launched on these tensors; they may still run after it. `write`: they also
    write. Without it, what they write is lost.

        with memtide.hold(layer.weight, write=True):
            scale_kernel[grid](layer.weight, 0.5, layer.weight.numel(), BLOCK=1024)

    Hold few tensors, and not for long: others cannot use their place. ResourceExhausted: these, and
    what other blocks hold, are more than may be held at once. An optimizer must not step in the
    block. Tensors that memtide does not manage need no hold, and nothing happens for them; nor does
    anything happen where memtide does not run. docs/kernels.md has more.
    """
    runtime = runtimes.current()
    if runtime is None:
        return contextlib.nullcontext()
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return holding(runtime.memory, listed, write=write)


def activations(choice: Literal["keep", "move"]) -> contextlib.AbstractContextManager[None]:
    """Says what is done with all that autograd saves in a `with` block, in a script's forward pass.

    "keep": it stays in the script's own memory. "move": it leaves for chunks as soon as nothing
    else uses it, and comes back for backward; a budget is not needed.

        with memtide.activations("move"):
            image_features = self.encoder(images)  # Not used again before backward.

    The block counts for the thread that enters it, and not for threads that it starts. Blocks may
    nest, also with modules that `memtide.offload` has choices for: the innermost one wins. In it,
    no block of the model is recomputed. Where a block of the model is recomputed as a whole, what
    is in it is not asked; one that contains such a `with` block is not chosen for that.

    Where memtide does not run, and in compiled code, nothing happens. UsageError: another word.
    """
    if is_captured():
        return contextlib.nullcontext()
    part = choice_of_part(choice)
    runtime = runtimes.current()
    return contextlib.nullcontext() if runtime is None else runtime.activations.within(part)


def _listed(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]


def _connect(model: torch.nn.Module, sizes: Mapping[str, int | None]) -> Connection:
    parameters = tuple(
        Parameter(p.numel() * p.itemsize, trained=p.requires_grad) for p in model.parameters()
    )
    return connect(
        SessionRequest(
            Pools(sizes["device_pool"], sizes["host_pool"], sizes["ssd_pool"]),
            budget=MemoryBudget(sizes["device_memory"], sizes["host_memory"]),
            chunk_bytes=sizes["chunk_size"] or 0,
            parameters=parameters,
            names_in=runtimes.parameters_in,
        )
    )


def _check_sizes(sizes: Mapping[str, int | None]) -> None:
    """UsageError: a later call of `offload` names sizes that the session does not have."""
    for name, size in sizes.items():
        if size is not None and size != (had := _sizes[name]):
            begun = "without one" if had is None else f"with {format_size(had)}"
            raise UsageError(
                f"{name}={format_size(size)}: this process's session began {begun}, and lasts "
                "until the process ends: leave it out, or start a new process (notebook: kernel)"
            )


def _bytes(size: str | int | None) -> int | None:
    return parse_size(size) if isinstance(size, str) else size
