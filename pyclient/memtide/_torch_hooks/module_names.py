"""The paths of modules in their models, such as `blocks.3.mlp.0`, by which moments are named.

Torch tells when a module is registered in another. A module that was copied or unpickled since has
the name of its class.
"""

from __future__ import annotations

import weakref

from torch import nn

# The daemon records so much of a name (daemon/engine/tables/job_trace.h).
_MOST_BYTES = 64
_CUT = "..."
_DEEPEST = 64  # A module may be in itself.


class ModuleNames:
    """Where modules stand."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], str]] = (
            weakref.WeakKeyDictionary()
        )

    def registered(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """A global hook of torch: `module` is put into `parent`. Its first place counts."""
        if module is not None and module not in self._places:
            self._places[module] = weakref.ref(parent), name

    def root_of(self, module: nn.Module) -> nn.Module:
        """The model in which a module stands."""
        at = module
        for _ in range(_DEEPEST):
            parent = self._places[at][0]() if at in self._places else None
            if parent is None:
                break
            at = parent
        return at

    def know(self, model: nn.Module) -> None:
        """Takes the places of all modules of a model that was there before the hook."""
        for parent in model.modules():
            for name, module in parent.named_children():
                self.registered(parent, name, module)

    def add(self, others: ModuleNames) -> None:
        """Takes the places that `others` knows, too."""
        for module, place in others._places.items():
            self._places.setdefault(module, place)

    def parameter_at(self, address: int) -> str:
        """The name of the parameter that has this address in it; "a parameter": none is known."""
        return next(iter(self.parameters_in(address, address + 1)), "a parameter")

    def parameters_in(self, start: int, end: int) -> list[str]:
        """The names of the parameters that have bytes in [start, end), by their addresses."""
        parents = [parent() for parent, _ in self._places.values()]
        found: dict[int, str] = {}
        for module in {*self._places, *(parent for parent in parents if parent is not None)}:
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                address = parameter.data_ptr()
                if address < end and start < address + parameter.nbytes:
                    path = self.of(module)
                    found[address] = f"{path}.{name}" if module in self._places else name
        return [found[address] for address in sorted(found)]

    def of(self, module: nn.Module) -> str:
        """A module's path, the end of it where it is long; its class, if it stands in no other."""
        parts: list[str] = []
        at: nn.Module | None = module
        while at is not None and at in self._places and len(parts) < _DEEPEST:
            parent, name = self._places[at]
            parts.append(name)
            at = parent()
        path = ".".join(reversed(parts)) or type(module).__name__
        encoded = path.encode()
        if len(encoded) <= _MOST_BYTES:
            return path
        return _CUT + encoded[len(_CUT) - _MOST_BYTES :].decode(errors="ignore")
