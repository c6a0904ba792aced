"""The model that a script shows, as JSON of memtide_plan.models.described.Described."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from memtide_plan.models.described import Described
from memtide_plan.models.modules.describe import Batch, model, parameters_alone
from memtide_plan.models.modules.forward import ForwardPass, forward
from memtide_plan.models.modules.rows import Part, parts_of
from memtide_plan.models.modules.states import states_of
from memtide_plan.seen_model.meta_parameters import MetaParameters, as_meta, move_to_meta
from memtide_plan.seen_model.watch import Watch

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def describe(
    name: str,
    module: nn.Module,
    watch: Watch,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    unseen: str | None,
) -> dict[str, Any]:
    """`module`: the module that the script calls, with these arguments, or whose forward pass is
    `unseen`, in a few words why. The module that contains it, if any, is the model. Modules are
    changed for good."""
    trained = set(watch.trained())
    root = next((r for r in watch.roots() if any(m is module for m in r.modules())), module)
    moved = move_to_meta(root)
    trained |= {id(made) for before, made in moved.items() if before in trained}
    parts = parts_of(root, trained)
    elements = sum(part.parameters for part in parts)
    weight_bytes = sum(part.weight_bytes for part in parts) / max(1, elements)
    states, assumed = states_of(watch.optimizers[0], weight_bytes)
    notes = [assumed] if assumed else []
    batch, seen = None, None
    if unseen is None:
        batch = Batch.of((args, kwargs))
        if watch.compute_type in _NARROW:
            narrow = _NARROW[watch.compute_type]
            root.to(narrow)
            args, kwargs = _narrowed(args, narrow), _narrowed(kwargs, narrow)
            notes.append(
                f"Under autocast all activations are counted in {watch.compute_type}, and no "
                "copies of weights."
            )
        try:
            seen = _pass(module, parts, args, kwargs)
        except Exception as error:  # The module is the script's.
            unseen = f"it cannot be called without content: {str(error).splitlines()[0]}"
    if seen is None or batch is None:
        described = parameters_alone(name, parts)
        notes.append(
            f"No forward pass was seen ({unseen}): operations are two for each parameter and "
            "token, and what is saved for the backward pass is not counted."
        )
    else:
        described = model(name, parts, seen, batch)
        notes += _notes(batch, len(watch.optimizers))
    return asdict(
        Described(
            model=described,
            states=states,
            batch=batch.batch if batch else None,
            sequence=batch.sequence if batch else None,
            compute_type=watch.compute_type or _type_of(root),
            notes=tuple(notes),
        )
    )


def _pass(
    module: nn.Module, parts: list[Part], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ForwardPass:
    module.train()
    with MetaParameters():
        return forward(module, parts, lambda: module(*as_meta(args), **as_meta(kwargs)))


def _narrowed(value: Any, dtype: torch.dtype) -> Any:
    """The same, with tensors of floating point in this type, on the meta device."""
    value = as_meta(value)
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _narrowed(item, dtype) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_narrowed(item, dtype) for item in value)
    return value


def _type_of(module: nn.Module) -> str:
    """The type that most elements of the parameters have."""
    elements: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + parameter.numel()
    widest = max(elements, key=lambda dtype: elements[dtype])
    return str(widest).removeprefix("torch.")


def _notes(batch: Batch, optimizers: int) -> Iterator[str]:
    if not batch.has_tokens:
        yield "One token is a whole sample, of the size that the script's first batch has."
    else:
        yield f"Activations are those of sequences of {batch.sequence} tokens."
    if optimizers > 1:
        yield "The script has several optimizers; the model is the first one that is called."
