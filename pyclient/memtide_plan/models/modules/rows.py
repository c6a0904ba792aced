"""Which modules of a model are its blocks, and which parameters each has.

Blocks are the children of a ModuleList, Sequential or ModuleDict in which two or more are alike: of
one class, with parameters of the same shapes. Only the outermost such containers count. Parameters
outside of all blocks belong to the embedding if their module comes before the first block, and else
to the head; a model without blocks is one block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(eq=False)
class Part:
    """Parameters of a model, and the module that has them; None: they are outside of blocks."""

    name: str
    module: nn.Module | None
    kind: Any = None  # A value that parts of one row have in common.
    parameters: int = 0
    trained: int = 0
    weight_bytes: int = 0  # All parameters together.
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, parameter: nn.Parameter, *, is_trained: bool) -> None:
        """Counts a parameter."""
        self.parameters += parameter.numel()
        self.weight_bytes += parameter.numel() * parameter.element_size()
        self.trained += parameter.numel() if is_trained else 0
        self.shapes.append(tuple(parameter.shape))


def parts_of(model: nn.Module, trained: Collection[int]) -> list[Part]:
    """The parts in their order: the embedding, the blocks, the head. `trained`: the id of each
    parameter that an optimizer has. A parameter of two modules belongs to the first one."""
    blocks = {id(part.module): part for part in _blocks(model, "")}
    before, after = Part("embedding", None), Part("head", None)
    parts = [before, *blocks.values(), after] if blocks else [Part("model", None)]
    seen: set[int] = set()

    def visit(module: nn.Module, part: Part) -> Part:
        part = blocks.get(id(module), part)
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                part.add(parameter, is_trained=id(parameter) in trained)
        following = part
        for child in module.children():
            reached = visit(child, following)
            if part.module is None:
                following = after if reached.module is not None or reached is after else following
        return following if part.module is None else part

    visit(model, parts[0])
    return parts


def _blocks(module: nn.Module, path: str) -> Iterator[Part]:
    children = list(module.named_children())
    kinds = {id(child): _kind(child) for _, child in children}
    if isinstance(module, _CONTAINERS):
        numbers = Counter(kind for kind in kinds.values() if kind[1])
        if any(number > 1 for number in numbers.values()):
            for name, child in children:
                if kinds[id(child)][1]:
                    yield Part(f"{path}{name}", child, (path, kinds[id(child)]))
            return
    for name, child in children:
        yield from _blocks(child, f"{path}{name}.")


def _kind(module: nn.Module) -> tuple[type, tuple[tuple[int, ...], ...]]:
    return type(module), tuple(tuple(parameter.shape) for parameter in module.parameters())
