"""The states of torch's default random generators: the CPU's, and one device's."""

from __future__ import annotations

from typing import Any

import torch

_CPU = torch.device("cpu")


class RandomStates:
    """The states of the CPU's generator and that of a device, to go back to."""

    __slots__ = ("_cpu", "_device", "_of_device")

    def __init__(self, device: torch.device) -> None:
        """Takes them now."""
        self._device = device
        self._cpu = torch.get_rng_state()
        module = _module(device)
        self._of_device = None if module is None else module.get_rng_state(device)

    def restore(self) -> None:
        """Sets both generators."""
        torch.set_rng_state(self._cpu)
        module = _module(self._device)
        if module is not None and self._of_device is not None:
            module.set_rng_state(self._of_device, self._device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates) or not torch.equal(self._cpu, other._cpu):
            return False
        here, there = self._of_device, other._of_device
        if here is None or there is None:
            return here is there
        return torch.equal(here, there)

    __hash__ = None  # type: ignore[assignment]


def _module(device: torch.device) -> Any:
    """Torch's module of a device; None: it is the CPU, or has no generator in use."""
    if device == _CPU:
        return None
    module = torch.get_device_module(device)
    is_used = getattr(module, "is_initialized", lambda: True)()
    return module if is_used and hasattr(module, "get_rng_state") else None
