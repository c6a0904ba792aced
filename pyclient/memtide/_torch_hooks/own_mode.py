"""The base class of memtide's dispatch modes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._torch_hooks.op_schema import are_fake, has_own_dispatch


class OwnMode(TorchDispatchMode):
    """A dispatch mode that changes no result."""

    supports_higher_order_operators = True
    # Whether torch.compile goes on under such a mode. If not, it must leave all as it is.
    compiles: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        dispatch = cls.__dict__.get("__torch_dispatch__")
        if dispatch is not None and not hasattr(TorchDispatchMode, "_should_skip_dynamo"):
            # Before 2.11 torch compiles what a mode does within a function that it compiles.
            disabled = torch._compile._disable_dynamo(dispatch, recursive=True)
            cls.__torch_dispatch__ = disabled  # type: ignore[method-assign]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch asks this: whether it may compile while the mode is active. Some optimizers compile
        their update, and so does a closure with a compiled model; eager operations round otherwise.
        """
        return OwnMode.compiles

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and has_own_dispatch(types):
            # A tensor made of others runs operations on those, which arrive here one by one.
            return func(*args, **(kwargs or {})) if are_fake(types) else NotImplemented
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on tensors that are made of no others."""
        raise NotImplementedError
