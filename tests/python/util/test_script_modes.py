"""Modes of the script see the script's operations alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from memtide._util.script_modes import in_mode_of_script, without_modes_of_script
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Seen = list[str]


class FunctionMode(TorchFunctionMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append("function")
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append("dispatch")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("mode", "name"), [(FunctionMode, "function"), (DispatchMode, "dispatch")])
def test_no_mode_of_the_script_sees_what_is_memtide_s(
    mode: Callable[[Seen], AbstractContextManager[Any]], name: str
) -> None:
    seen: Seen = []
    one = torch.ones(1)
    with mode(seen):
        assert in_mode_of_script()
        with without_modes_of_script():
            one.add_(1)
        assert not seen
        one.add_(1)
    assert seen == [name]
    assert not in_mode_of_script()


def test_without_a_mode_and_with_a_default_device_nothing_is_set_aside() -> None:
    with without_modes_of_script():
        assert not in_mode_of_script()
    with torch.device("meta"):
        assert not in_mode_of_script()
        with without_modes_of_script():
            assert torch.ones(1).device.type == "meta"
