"""The recorded traces in bench/traces, and the scripts that they were recorded from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli

TRACES = REPOSITORY / "bench" / "traces"
sys.path.append(str(TRACES))

import record  # noqa: E402


def test_stripping_leaves_out_moves_and_says_how_it_was_made() -> None:
    made_by, job, moment = b"\x0a\x03old", b"\x10\x07", b"\x42\x02\x28\x05"
    move, stall = b"\x52\x02\x08\x01", b"\x5a\x02\x10\x09"
    stripped = record.strip(made_by + job + moment + move + stall, "new words")
    assert stripped == b"\x0a\x09new words" + job + moment + stall


@pytest.mark.parametrize("script", sorted(TRACES.glob("train_*.py")), ids=lambda path: path.stem)
def test_a_script_runs_without_memtide(script: Path, cli: Cli) -> None:
    assert "step   1  loss" in cli.python(script, "--steps", "1").check().out


@pytest.mark.skipif("MEMTIDE_REPLAY" not in os.environ, reason="no MEMTIDE_REPLAY")
def test_every_trace_is_small_and_can_be_played(cli: Cli) -> None:
    paths = [TRACES / f"{name}.trace.gz" for name in record.SCRIPTS]
    assert sorted(TRACES.glob("*.trace.gz")) == sorted(paths)
    assert all(path.stat().st_size < 200 * 1024 for path in paths)
    options = ["--json", "--policy=lru", "--device-slots=33%", "--host-slots=33%"]
    played = json.loads(cli.memtide("replay", *options, *paths).check().out)
    for name, comparison in zip(record.SCRIPTS, played, strict=True):
        assert Path(record.SCRIPTS[name][0]).name in comparison["made_by"]
        assert comparison["iterations"] >= 3
        assert comparison["policies"][0]["moved_bytes"] > 0
