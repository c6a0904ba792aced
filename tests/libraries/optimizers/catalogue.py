"""The optimizers that are tried, by library: all of torch.optim, and those of libraries.

Each is made for a model as its documentation says. Libraries are imported by what makes theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Maker = Callable[[nn.Module], Optimizer]
_RATE = 1e-3


def _of(module: str, name: str, model: nn.Module, **options: Any) -> Optimizer:
    kind = getattr(importlib.import_module(module), name)
    made: Optimizer = kind(list(model.parameters()), lr=_RATE, **options)
    return made


def _for_some(
    name: str, is_for: Callable[[str, nn.Parameter], bool], model: nn.Module
) -> Optimizer:
    """An optimizer of torch that not all parameters are for. The others are not trained."""
    for title, parameter in model.named_parameters():
        parameter.requires_grad_(is_for(title, parameter))
    trained = [p for p in model.parameters() if p.requires_grad]
    made: Optimizer = getattr(torch.optim, name)(trained, lr=_RATE)
    return made


def _sparse_adam(model: nn.Module) -> Optimizer:
    model.get_submodule("embed").sparse = True  # type: ignore[assignment]
    return _for_some("SparseAdam", lambda name, _: name.startswith("embed"), model)


def _wrapper(name: str, model: nn.Module) -> Optimizer:
    kind = getattr(importlib.import_module("schedulefree"), name)
    made: Optimizer = kind(torch.optim.SGD(model.parameters(), lr=1e-2), momentum=0.9)
    return made


def _by_name(name: str, model: nn.Module) -> Optimizer:
    library = importlib.import_module("pytorch_optimizer")
    made: Optimizer = library.create_optimizer(model, name, lr=_RATE)
    return made


def _torch() -> dict[str, Maker]:
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type)]
    names = [k.__name__ for k in kinds if issubclass(k, Optimizer) and k is not Optimizer]
    found: dict[str, Maker] = {name: partial(_of, "torch.optim", name) for name in names}
    # It is for matrices.
    found["Muon"] = partial(_for_some, "Muon", lambda _, parameter: parameter.ndim == 2)
    found["SparseAdam"] = _sparse_adam
    found["LBFGS"] = partial(_of, "torch.optim", "LBFGS", max_iter=4)
    more: dict[str, dict[str, Any]] = {
        "Adam": {"amsgrad": True},
        "AdamW": {"fused": True},
        "Adafactor": {"foreach": True},
        "RMSprop": {"momentum": 0.9, "centered": True},
        "SGD": {"momentum": 0.9, "nesterov": True},
    }
    for name, options in more.items():
        title = f"{name} ({', '.join(options)})"
        found[title] = partial(_of, "torch.optim", name, **options)
    return found


def _each(module: str, names: Iterable[str], **options: Any) -> dict[str, Maker]:
    return {name: partial(_of, module, name, **options) for name in names}


def _schedule_free() -> dict[str, Maker]:
    kinds = ("AdamWScheduleFree", "RAdamScheduleFree", "SGDScheduleFree")
    names = [*kinds, *(f"{kind}Closure" for kind in kinds)]
    names += ["AdamWScheduleFreeReference", "AdamWScheduleFreePaper", "SGDScheduleFreeReference"]
    wrappers = ("ScheduleFreeWrapper", "ScheduleFreeWrapperReference")
    return {
        **_each("schedulefree", names),
        **{name: partial(_wrapper, name) for name in wrappers},
    }


# By name in pytorch_optimizer, why it is not tried. All of these fail without memtide, too.
NOT_TRIED = {
    "adahessian": "needs second derivatives, which torch's attention on a CPU lacks",
    "sophiah": "needs second derivatives, which torch's attention on a CPU lacks",
    "adalomo": "steps in backward, by a method of its own",
    "lomo": "steps in backward, by a method of its own",
    "alice": "its eigenvalues do not converge for this model",
    "alig": "its closure must return a loss that has a gradient",
    "bsam": "needs to know the size of the data",
    "ranger21": "needs to know the number of steps",
    "demo": "is for several processes",
    "distributedmuon": "is for several processes",
    "kron": "does not end within a minute for this model",
    "lorarite": "is for LoRA's pairs of matrices",
    "spectralsphere": "steps matrices only",
}
# The optimizers of large libraries that have rows of their own in the table.
NOTABLE = frozenset(
    {"adafactor", "adan", "ademamix", "came", "galore", "lamb", "lars", "lion", "muon", "prodigy"}
    | {"scalableshampoo", "shampoo", "sm3", "soap", "apollo", "mars", "adammini", "lookahead_adamw"}
)


def _pytorch_optimizer(names: Iterable[str] | None = None) -> dict[str, Maker]:
    if names is None:
        library = importlib.import_module("pytorch_optimizer")
        names = [n for n in library.get_supported_optimizers() if n not in NOT_TRIED]
    return {name: partial(_by_name, name) for name in names}


def _timm() -> dict[str, Maker]:
    library = importlib.import_module("timm.optim")

    def make(name: str, model: nn.Module) -> Optimizer:
        made: Optimizer = library.create_optimizer_v2(model, opt=name, lr=_RATE, weight_decay=0.01)
        return made

    # They need apex, bitsandbytes or second derivatives, or do not end within a minute.
    left_out = ["fused*", "bnb*", "adahessian", "kron*"]
    names = library.list_optimizers(exclude_filters=left_out)
    return {name: partial(make, name) for name in (*names, "lookahead_adamw")}


_EIGHT_BIT = ("AdEMAMix", "Adagrad", "Adam", "AdamW", "LAMB", "LARS", "Lion", "RMSprop", "SGD")


def _bitsandbytes() -> dict[str, Maker]:
    found: dict[str, Maker] = {}
    for name in (each for kind in _EIGHT_BIT for each in (kind, f"{kind}8bit")):
        options = {"momentum": 0.9} if name.startswith(("SGD", "LARS")) else {}
        found.update(_each("bitsandbytes.optim", [name], **options))
    return {**found, **_each("bitsandbytes.optim", ["PagedAdamW"])}


_TORCHAO = ("Adam8bit", "AdamW8bit", "Adam4bit", "AdamW4bit", "AdamFp8", "AdamWFp8")
# Libraries whose states cannot be copied, which is tried with the others.
UNCOPIED = frozenset({"torchao"})
# By the name of a distribution.
LIBRARIES: dict[str, Callable[[], dict[str, Maker]]] = {
    "torch": _torch,
    "schedulefree": _schedule_free,
    "lion-pytorch": lambda: _each("lion_pytorch", ["Lion"]),
    "prodigyopt": lambda: _each("prodigyopt", ["Prodigy"]),
    "timm": _timm,
    "pytorch_optimizer": _pytorch_optimizer,
    "torchao": lambda: _each("torchao.optim", _TORCHAO),
    "bitsandbytes": _bitsandbytes,
}
