"""The script's choices for the tensors that autograd saves.

A `Choice` holds for the process, for what is saved within a call of a module that the script names,
or for what is saved within a `with memtide.activations(...)` block. The innermost one counts, in
the thread that entered it. Where the script says nothing, memtide plans.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from memtide._util.program_capture import is_captured
from memtide.errors import UsageError

Function = Callable[..., Any]
_NAMES_IN_ERRORS = 8


class Choice(enum.Enum):
    """The script's choice for saved tensors."""

    PLAN = "plan"  # It leaves, or is recomputed, where a budget is short.
    KEEP = "keep"  # It stays where torch has put it.
    MOVE = "move"  # It leaves for chunks as soon as nothing else uses it.
    RECOMPUTE = "recompute"  # Blocks that can be recomputed exactly are. The rest: as PLAN.


# With these, each saved tensor is to stay or to leave, and none is to be recomputed.
_BY_TENSOR = (Choice.KEEP, Choice.MOVE)


class _Entered(threading.local):
    """The choices that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.choices: list[Choice] = []
        self.count_by_tensor = 0  # Choices of `_BY_TENSOR` that were entered so far.


_entered = _Entered()


def innermost() -> Choice | None:
    """The choice that this thread is in; None: in none but the process's."""
    return _entered.choices[-1] if _entered.choices else None


def is_by_tensor() -> bool:
    """Whether what is saved now in this thread is to stay, or to leave, by the script's choice."""
    return innermost() in _BY_TENSOR


def entered_by_tensor() -> int:
    """A number that grows when this thread enters a part of which each tensor is to stay, or to
    leave."""
    return _entered.count_by_tensor


@contextlib.contextmanager
def within(choice: Choice) -> Iterator[None]:
    """A part of the script, in this thread, for which a choice holds."""
    _entered.count_by_tensor += choice in _BY_TENSOR
    _entered.choices.append(choice)
    try:
        yield
    finally:
        _entered.choices.pop()


class Choices:
    """The choices for one process and the modules of one model. Nothing in it changes."""

    def __init__(
        self, default: Choice = Choice.PLAN, modules: Mapping[nn.Module, Choice] | None = None
    ) -> None:
        self.default = default
        self._modules = dict(modules or {})

    @property
    def are_made(self) -> bool:
        """Whether the script has chosen anything but the plan."""
        return self.default is not Choice.PLAN or bool(self._modules)

    @property
    def classes(self) -> set[type[nn.Module]]:
        """The classes of the modules that the script names: `calling` is for their `__call__`."""
        return {type(module) for module in self._modules}

    def now(self) -> Choice:
        """The choice for what autograd saves now in this thread."""
        return innermost() or self.default

    def blocks(self, found: Iterable[nn.Module]) -> list[nn.Module]:
        """The blocks that are to be recomputed without a need: those that the script names, or all
        that were found."""
        if self.default is Choice.RECOMPUTE:
            return list(found)
        return [m for m, choice in self._modules.items() if choice is Choice.RECOMPUTE]

    def calling(self, original: Function) -> Function:
        """The `__call__` of one class: outside of all hooks, and of what replaces `_call_impl`."""

        @functools.wraps(original)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            choice = None if is_captured() else self._modules.get(module)
            if choice is None:
                return original(module, *args, **kwargs)
            with within(choice):
                return original(module, *args, **kwargs)

        return __call__


def choices_of(model: nn.Module, activations: str | Mapping[str, str]) -> Choices:
    """The choices that a script has given to `memtide.offload`. UsageError: a word is none of
    those of `Choice`, or one would have no effect."""
    if isinstance(activations, str):
        return Choices(_choice("activations", activations, tuple(Choice)))
    if not isinstance(activations, Mapping):
        raise UsageError(
            f"activations: {activations!r} is neither a word ({_words(tuple(Choice))}) nor a "
            "mapping from names of modules to such words"
        )
    return Choices(modules=_outermost(model, _matched(model, activations)))


def choice_of_part(word: str) -> Choice:
    """The choice for a part of a forward pass. UsageError: there is none of that name."""
    return _choice("memtide.activations", word, _BY_TENSOR)


def _choice(where: str, word: Any, possible: tuple[Choice, ...]) -> Choice:
    for choice in possible:
        if word == choice.value:
            return choice
    raise UsageError(f"{where}: {word!r} is none of {_words(possible)}")


def _words(possible: tuple[Choice, ...]) -> str:
    return ", ".join(repr(choice.value) for choice in possible)


def _matched(model: nn.Module, patterns: Mapping[str, str]) -> dict[nn.Module, Choice]:
    """For each module the word of the first pattern that matches it, or one that contains it."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    chosen: dict[nn.Module, Choice] = {}
    for pattern, word in patterns.items():
        where = f"activations[{pattern!r}]"
        choice = _choice(where, word, tuple(Choice))
        if not isinstance(pattern, str):
            raise UsageError(f"{where}: a key is a pattern for names, such as 'layers.*'")
        matched = [m for m, its in names.items() if any(_matches(pattern, name) for name in its)]
        if not matched:
            some = [name for its in names.values() for name in its if name][:_NAMES_IN_ERRORS]
            raise UsageError(
                f"{where}: no module of the model has such a name; the first ones are "
                f"{', '.join(map(repr, some)) or 'none, as it has no parts'}"
            )
        left = [module for module in matched if module not in chosen]
        if not left:
            raise UsageError(
                f"{where}: every module that it matches has matched a pattern before it, or lies "
                "in one that has, and the first match wins: put it before those"
            )
        chosen.update(dict.fromkeys(left, choice))
    return {module: chosen[module] for module in names if module in chosen}


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a module's name, or that of one that contains it."""
    while not fnmatchcase(name, pattern):
        if not name:
            return False
        name = name.rpartition(".")[0]
    return True


def _is_called(module: nn.Module) -> bool:
    """Whether it has a forward pass, unlike a ModuleList."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _outermost(model: nn.Module, modules: Mapping[nn.Module, Choice]) -> dict[nn.Module, Choice]:
    """Without the modules in those that are recomputed as a whole. UsageError: the script has
    chosen something else for one of these."""
    names = {module: name for name, module in model.named_modules()}
    called = {module: choice for module, choice in modules.items() if _is_called(module)}
    inner = set()
    for module, choice in called.items():
        if choice is not Choice.RECOMPUTE:
            continue
        for part in module.modules():
            if part is module:
                continue
            if modules[part] is not Choice.RECOMPUTE:
                raise UsageError(
                    f"activations: {names[part]!r} has {modules[part].value!r}, but lies in "
                    f"{names[module]!r}, which is to be recomputed as a whole"
                )
            inner.add(part)
    return {module: choice for module, choice in called.items() if module not in inner}
