"""`faulthandler.enable`, which sets signal handlers of its own in front of memtide's."""

from __future__ import annotations

import functools
from typing import Any

from memtide._capi.client import reinstall_handlers
from memtide._torch_hooks.patching.attributes import Function


def enabling(original: Function) -> Function:
    """faulthandler.enable: page faults still come to memtide first."""

    @functools.wraps(original)
    def enable(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        reinstall_handlers()
        return result

    return enable
