"""The daemon's optimizer kernels on torch tensors, through their C interface for tests.

MEMTIDE_OPTIMIZER_KERNELS names the library. The structs mirror daemon/optimizer/kernels_c.h.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

ALGORITHMS = ("Adam", "AdamW", "SGD", "Adagrad", "Lion")
_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("format", ctypes.c_int32)]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("algorithm", "amsgrad", "maximize", "nesterov")),
        *(
            (name, ctypes.c_double)
            for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "dampening")
        ),
        *((name, ctypes.c_double) for name in ("lr_decay", "initial_accumulator_value")),
        *((name, ctypes.c_uint64) for name in ("step", "elements")),
        ("gradient_factor", ctypes.c_double),
        *((name, _Span) for name in ("gradient", "parameter", "new_parameter", "copy")),
        ("old_state", _Span * 3),
        ("new_state", _Span * 3),
        *((name, ctypes.c_uint64) for name in ("rounding_seed", "first_element")),
    ]


def _span(tensor: torch.Tensor | None) -> _Span:
    if tensor is None:
        return _Span(None, 0)
    assert tensor.is_contiguous()
    return _Span(tensor.data_ptr(), _FORMATS[tensor.dtype])


class Kernels:
    """The loaded library."""

    def __init__(self, path: str | None = None) -> None:
        self._library = ctypes.CDLL(path or os.environ["MEMTIDE_OPTIMIZER_KERNELS"])
        self._library.memtide_optimizer_target.restype = ctypes.c_char_p

    @property
    def target(self) -> str:
        return self._library.memtide_optimizer_target().decode()

    def run(
        self,
        algorithm: str,
        step: int,
        gradient: torch.Tensor,
        parameter: torch.Tensor,
        states: list[torch.Tensor | None],
        new: tuple[torch.Tensor, list[torch.Tensor]] | None = None,
        copy: torch.Tensor | None = None,
        **options: Any,
    ) -> None:
        """Computes one step: in place, or into `new`, the new parameter and the new states.

        A state of None does not exist yet, and needs `new`. ValueError: the options are invalid.
        """
        betas = options.pop("betas", (0.0, 0.0))
        call = _Step(
            algorithm=ALGORITHMS.index(algorithm),
            beta1=betas[0],
            beta2=betas[1],
            step=step,
            elements=parameter.numel(),
            gradient_factor=1.0,
            gradient=_span(gradient),
            parameter=_span(parameter),
            copy=_span(copy),
            **options,
        )
        new_parameter, new_states = new or (parameter, states)
        call.new_parameter = _span(new_parameter)
        for i, (old, fresh) in enumerate(zip(states, new_states, strict=True)):
            call.old_state[i], call.new_state[i] = _span(old), _span(fresh)
        why = ctypes.create_string_buffer(300)
        if self._library.memtide_optimizer_run(ctypes.byref(call), why, ctypes.c_uint64(len(why))):
            raise ValueError(why.value.decode())
