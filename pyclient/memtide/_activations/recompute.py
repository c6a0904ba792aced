"""Runs blocks of a script so that autograd keeps only their inputs, and recomputes the rest.

A planned block runs under torch.utils.checkpoint (the form that is not reentrant), by a replaced
`_call_impl` of its class. Beside what torch restores (random generators, autocast), a recomputation
has the numeric settings of its forward pass, arguments that are the same tensors where they were
the same, and variables that refer to what they did (read_state.py).

A call runs as it is, without recomputation, where that would not be exact or was asked for
otherwise: in compiled code, under function transforms or modes of the script's, without gradients,
within a checkpoint or saved-tensor hooks of the script's own, with hooks of the script's own on the
block or on any module in it, and in another state (training or not) than was rehearsed.
"""

from __future__ import annotations

import enum
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

from memtide._activations import script_choices
from memtide._activations.call_arguments import CallArguments, ForeignArgument
from memtide._activations.dear_results import DearResults, HookPair
from memtide._activations.default_hooks import in_checkpoint
from memtide._activations.marks import Unseen
from memtide._activations.numeric_settings import NumericSettings
from memtide._activations.read_state import Reads, ReadState, without_new_hooks
from memtide._util.origin import is_memtide_s
from memtide._util.program_capture import is_captured
from memtide._util.script_modes import in_mode_of_script

Function = Callable[..., Any]
_NO_BACKWARD = -1
_GLOBAL_HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
)


class Replacer(Protocol):
    """Replaces attributes of torch's: memtide._torch_hooks.patching.attributes.Attributes."""

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None: ...
    def undo(self) -> None: ...


class Mode(enum.Enum):
    """The part of a block that is recomputed."""

    ALL_BUT_INPUT = "all_but_input"
    REST = "rest"  # All but its input and dear results.


class Recompute:
    """The blocks that are recomputed now."""

    def __init__(
        self, attributes: Replacer, recomputing: Callable[[], None] = lambda: None
    ) -> None:
        """`attributes` is this object's alone. `recomputing` is called when a call begins that is
        to be recomputed."""
        self._attributes = attributes
        self._modes: weakref.WeakKeyDictionary[nn.Module, tuple[Mode, tuple[bool, ...], Reads]]
        self._modes = weakref.WeakKeyDictionary()
        self._changed: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # In place, before backward.
        self._kinds: set[type] = set()
        self._recomputing = recomputing

    def prepare(self, blocks: Iterable[nn.Module]) -> None:
        """Replaces now the functions that plans for these blocks need. Later replacements are
        outside."""
        for kind in {type(block) for block in blocks} - self._kinds:
            self._kinds.add(kind)
            self._attributes.replace(kind, "_call_impl", self._calling)

    def plan(
        self,
        modes: Mapping[nn.Module, Mode | str],
        reads: Mapping[nn.Module, Reads] = MappingProxyType({}),
    ) -> None:
        """Recomputes these blocks, and no others, from their next call on. Each of them runs as it
        is whenever modules in it are in training that are not now, or the other way round.
        `reads`: what a block's code names."""
        self._modes.clear()
        self.prepare(modes)
        for block, mode in modes.items():
            if block not in self._changed:
                self._modes[block] = Mode(mode), training_of(block), reads.get(block, Reads())

    def close(self) -> None:
        """Puts back what was replaced. Graphs that exist are still recomputed."""
        self._modes.clear()
        self._kinds.clear()
        self._attributes.undo()

    def _calling(self, original: Function) -> Function:
        @functools.wraps(original)
        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_captured():
                return original(module, *args, **kwargs)
            planned = self._modes.get(module)
            if planned is None or reason_against_call(module) is not None:
                return original(module, *args, **kwargs)
            mode, training, names = planned
            if training_of(module) != training:
                return original(module, *args, **kwargs)
            try:
                arguments = CallArguments(args, kwargs)
                reads = ReadState(modules_in(module), names)
            except (ForeignArgument, Unseen):
                return original(module, *args, **kwargs)
            if len({t.device for t in arguments.tensors if t.dim()} | devices_of(module)) > 1:
                return original(module, *args, **kwargs)
            self._recomputing()
            run = functools.partial(original, module)
            call = _Call(run, arguments, module, reads, self._note_change)
            return call.run(mode, args, kwargs)

        return _call_impl

    def _note_change(self, block: nn.Module) -> None:
        """A block was recomputed from other variables than its forward pass had."""
        if block in self._changed:
            return
        self._changed.add(block)
        self._modes.pop(block, None)
        print(
            f"memtide: a variable that {type(block).__name__} reads was changed in place between "
            "its forward pass and its backward pass, which recomputed it: results may differ from "
            "plain torch's from here on. It is not recomputed again (docs/activations.md)",
            file=sys.stderr,
        )


class _Call:
    """One call of a block. It runs in forward, and again in each backward pass that needs it."""

    def __init__(
        self,
        run: Function,
        arguments: CallArguments,
        block: nn.Module,
        reads: ReadState,
        note_change: Callable[[nn.Module], None],
    ) -> None:
        self._run = run
        self._reads, self._note_change = reads, note_change
        self._tensors = arguments.tensors
        self._arguments = arguments.without_tensors()
        self._block = block
        self._settings = NumericSettings()
        self._versions = _versions_of(block)
        self._first: tuple[Any, Any] | None = None
        self._error: BaseException | None = None

    def run(self, mode: Mode, args: Any, kwargs: Any) -> Any:
        """The forward pass."""
        tensors, self._tensors = self._tensors, []
        self._first = args, kwargs
        extra: dict[str, Any] = {}
        if mode is Mode.REST:
            dear = DearResults(top_hooks())
            extra["context_fn"] = dear.contexts
        output = checkpoint(self._forward, *tensors, use_reentrant=False, **extra)
        if self._error is None:
            return output
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # It refers to this frame.

    def _forward(self, *tensors: torch.Tensor) -> Any:
        if self._first is None:
            return self._again(tensors)
        (args, kwargs), self._first = self._first, None
        try:
            with in_checkpoint():
                return self._run(*args, **kwargs)
        except BaseException as error:
            # Torch leaves its hooks and modes set in this thread for as long as somebody holds the
            # error, so it does not see it.
            self._error = error
            return None

    def _again(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        with self._reads.restored() as is_same:
            if not is_same:
                self._note_change(self._block)
            with without_new_hooks([*tensors, *parameters_of(self._block)]):
                return self._run_again(tensors)

    def _run_again(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        if _versions_of(self._block) != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a parameter or a buffer of "
                f"{type(self._block).__name__}, which memtide recomputes in backward, was changed "
                "since its forward pass"
            )
        args, kwargs = self._arguments.given(tensors)
        with self._settings.applied(), in_checkpoint():
            return self._run(*args, **kwargs)


def reason_against_call(module: nn.Module) -> str | None:
    """Why a block cannot be recomputed if it is called now, in this thread."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return "it runs without gradients"
    if torch._C._current_graph_task_id() != _NO_BACKWARD:
        return "it runs within a backward pass, as under a checkpoint of the script's own"
    hooks = top_hooks()
    if hooks is not None and not is_memtide_s(hooks[0]):
        return "it runs within a checkpoint or saved-tensor hooks of the script's own"
    if script_choices.is_by_tensor():
        return "the script chooses whether what is saved in it stays or leaves"
    if torch._C._get_tracing_state() is not None:
        return "it is traced"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return "it runs within a function transform"
    if in_mode_of_script():
        return "it runs within a mode of the script's own"
    if has_script_hooks(module):
        return "the script has hooks on it, or on a module in it"
    return None


def has_script_hooks(block: nn.Module) -> bool:
    """Whether hooks that are not memtide's are called with a block, or with modules in it."""
    for name in _GLOBAL_HOOKS:
        if not all(map(is_memtide_s, getattr(torch_modules, name).values())):
            return True
    return any(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        for module in modules_in(block)
    )


def modules_in(block: nn.Module) -> Iterator[nn.Module]:
    """A block and all modules in it. One that is in several of them comes several times."""
    stack: list[nn.Module] = [block]
    while stack:
        module = stack.pop()
        yield module
        stack.extend(child for child in module._modules.values() if child is not None)


def training_of(block: nn.Module) -> tuple[bool, ...]:
    """Which modules of a block are in training."""
    return tuple(module.training for module in modules_in(block))


def parameters_of(block: nn.Module) -> list[torch.Tensor]:
    """The parameters of a block. A class may have methods of its own under torch's names."""
    return [p for m in modules_in(block) for p in m._parameters.values() if p is not None]


def devices_of(block: nn.Module) -> set[torch.device]:
    """Where the parameters of a block are."""
    return {p.device for p in parameters_of(block)}


def top_hooks() -> HookPair | None:
    """This thread's saved-tensor hooks that are called now."""
    hooks: HookPair | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def _versions_of(block: nn.Module) -> list[int]:
    return [
        tensor._version
        for module in modules_in(block)
        for tensors in (module._parameters, module._buffers)
        for tensor in tensors.values()
        if tensor is not None and not tensor.is_inference()
    ]
