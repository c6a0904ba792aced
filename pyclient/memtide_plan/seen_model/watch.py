"""Watches a script until it shows its model: the first forward pass of what its optimizer trains.

Torch's optimizers, and all that are derived from them, are seen when they are made. Weights of
pretrained models are not read: `from_pretrained` makes the model from its configuration.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

from memtide._torch_hooks.patching.attributes import Function
from memtide._torch_hooks.patching.later_patches import LaterPatches
from memtide._util.import_hook import after_import

Shown = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class Watch:
    """`optimizers`: those that the script has made. `compute_type`: of the last autocast that it
    has made; None: none."""

    def __init__(self, shown: Shown) -> None:
        """`shown`: is called with a module, its arguments and its keyword arguments in the place of
        its first forward pass; it does not return."""
        self.optimizers: list[Any] = []
        self.compute_type: str | None = None
        self._shown = shown
        self._attributes = LaterPatches()
        after_import("torch", self._torch_imported)
        after_import("transformers.modeling_utils", self._transformers_imported)

    def trained(self) -> dict[int, Any]:
        """The parameters that optimizers have, by their ids."""
        groups = (group for each in self.optimizers for group in each.param_groups)
        return {id(parameter): parameter for group in groups for parameter in group["params"]}

    def roots(self) -> list[Any]:
        """The modules that stand in no other, and have parameters that optimizers have."""
        from torch import nn

        trained = self.trained()
        modules = [each for each in gc.get_objects() if _is_module(each, nn.Module)]
        inner = {id(child) for module in modules for child in module.children()}
        return [
            module
            for module in modules
            if id(module) not in inner and any(id(p) in trained for p in module.parameters())
        ]

    def _torch_imported(self) -> None:
        import torch

        from memtide_plan.seen_model.meta_parameters import MetaParameters

        self._attributes.replace(torch.nn.Module, "__call__", self._calling)
        self._attributes.replace(torch.optim.Optimizer, "__init__", self._making)
        self._attributes.replace(torch.amp.autocast_mode.autocast, "__init__", self._casting)
        self._attributes.replace(torch, "compile", _not_compiling)
        # The file that torch.save would write is not opened by Python.
        self._attributes.replace(torch, "save", lambda original: lambda *args, **kwargs: None)
        MetaParameters().__enter__()  # type: ignore[no-untyped-call]

    def _transformers_imported(self) -> None:
        module = sys.modules["transformers.modeling_utils"]
        self._attributes.replace(module.PreTrainedModel, "from_pretrained", _from_configuration)

    def _making(self, original: Function) -> Function:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.optimizers.append(optimizer)

        return __init__

    def _calling(self, original: Function) -> Function:
        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.optimizers:
                trained = self.trained()
                if any(id(parameter) in trained for parameter in module.parameters()):
                    self._attributes.undo()
                    self._shown(module, args, kwargs)
            return original(module, *args, **kwargs)

        return __call__

    def _casting(self, original: Function) -> Function:
        @functools.wraps(original)
        def __init__(
            context: Any,
            device_type: str,
            dtype: Any = None,
            enabled: bool = True,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            original(context, device_type, dtype, enabled, *args, **kwargs)
            if enabled:
                self.compute_type = str(dtype or context.fast_dtype).removeprefix("torch.")

        return __init__


def _is_module(value: Any, kind: type) -> bool:
    # isinstance would ask proxies for their class.
    return issubclass(type(value), kind)


def _not_compiling(original: Function) -> Function:
    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return (lambda function: function) if model is None else model

    return compile


def _from_configuration(original: Function) -> Any:
    """A class method, as it is called: with the class that it was bound to replaced by the one that
    it is called on."""

    def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config") or cls.config_class.from_pretrained(name)
        model = cls(config)
        dtype = kwargs.get("dtype") or kwargs.get("torch_dtype")
        return model if dtype in (None, "auto") else model.to(dtype)

    return classmethod(from_pretrained)
