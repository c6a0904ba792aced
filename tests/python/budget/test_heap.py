"""Memory that a script frees goes back to the system."""

from __future__ import annotations

import platform

import pytest
from harness import Cli

# Blocks of 1 MiB that are freed after a larger one was: glibc has raised its threshold by then, and
# keeps them. Between them are small blocks that stay.
_SCRIPT = """
import sys, torch
from memtide._telemetry.process_memory import host_bytes
from memtide._util import heap
early, late = sys.argv[1:] == ["early"], sys.argv[1:] == ["late"]
if early:
    assert heap.return_freed_blocks() in (True, False)
torch.empty(31 << 20, dtype=torch.uint8).fill_(1)
before = host_bytes()
blocks = [(torch.ones(1 << 20, dtype=torch.uint8), torch.ones(600)) for _ in range(200)]
small = [pair[1] for pair in blocks]
del blocks
if late:
    heap.return_freed_blocks()
print((host_bytes() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_blocks_go_back_when_they_are_freed_and_those_that_were_freed_before(cli: Cli) -> None:
    own_heap = cli.in_new_interpreters()  # Small blocks fit holes in the heap of a forked process.
    kept_mib = {
        when: int(own_heap.python("-c", _SCRIPT, when).check().out)
        for when in ("never", "early", "late")
    }
    assert kept_mib["never"] >= 150, "glibc keeps them"
    assert kept_mib["early"] <= 20
    assert kept_mib["late"] <= 20
