"""A process that was forked from one with chunks, and does not have these.

Chunks of the parent are no memory of the child: to access a tensor that it inherited would end it
by SIGSEGV. Data loaders never do that. A training does it at once, in ways that torch lets us see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memtide._launch.on_path import memtide_unmanaged
from memtide.errors import FailedPrecondition


def entered(parent: int, is_in_chunks: Callable[[Any], bool]) -> None:
    """This process was forked from `parent`. It may train what it makes itself, in ordinary memory,
    and says so at its first step. To use a module with a parameter or a buffer that `is_in_chunks`
    raises FailedPrecondition, which says what to do. REQUIRES: torch is imported."""
    from torch.nn.modules import module as torch_modules

    reason = (
        f"was forked from process {parent}, which had made parameters before, and chunks are not "
        "inherited: start it with the method 'spawn', or fork it before there is a model"
    )

    def check(module: Any) -> None:
        if any(map(is_in_chunks, [*module.parameters(), *module.buffers()])):
            raise FailedPrecondition(f"this process {reason}")

    def before_forward(module: Any, _inputs: Any) -> None:
        if module._parameters or module._buffers:
            check(module)

    def registered(_module: Any, _name: str, submodule: Any) -> None:
        if submodule is not None:  # DistributedDataParallel reads the parameters of its own.
            check(submodule)

    torch_modules.register_module_forward_pre_hook(before_forward)
    torch_modules.register_module_module_registration_hook(registered)
    memtide_unmanaged.say_at_first_step(f"it {reason}")
