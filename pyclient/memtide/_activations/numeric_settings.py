"""Settings of torch that change what an operation computes, or which kernel computes it.

A script may set them around its forward pass alone, as `with sdpa_kernel(...)` does. A block that
is recomputed in backward runs under the settings of its forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_FUNCTIONS = (
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
)
# How each setting is read and set. A torch may lack some.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    *(
        (getattr(torch._C, read), getattr(torch._C, write))
        for read, write in _FUNCTIONS
        if hasattr(torch._C, read) and hasattr(torch._C, write)
    ),
)


class NumericSettings:
    """The settings of one moment."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        """Reads them now."""
        self._values = [read() for read, _ in _SETTINGS]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Runs a block under them."""
        before = NumericSettings()
        before._change_to(self)
        try:
            yield
        finally:
            self._change_to(before)

    def _change_to(self, other: NumericSettings) -> None:
        for (_, write), now, then in zip(_SETTINGS, self._values, other._values, strict=True):
            if now != then:
                write(then)
