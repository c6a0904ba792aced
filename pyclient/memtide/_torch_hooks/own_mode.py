"""The base class of memtide's dispatch modes."""

from __future__ import annotations

from typing import ClassVar

from torch.utils._python_dispatch import TorchDispatchMode


class OwnMode(TorchDispatchMode):
    """A dispatch mode that changes no result."""

    supports_higher_order_operators = True
    # Whether torch.compile goes on under such a mode. If not, it must leave all as it is.
    compiles: ClassVar[bool] = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch asks this: whether it may compile while the mode is active. Some optimizers compile
        their update, and so does a closure with a compiled model; eager operations round otherwise.
        """
        return OwnMode.compiles
