"""A line at the end of a run: what a larger host pool would have gained, by replay of its trace."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli
from memtide._launch import larger_pool
from memtide._launch.larger_pool import line_about_larger_pool
from memtide._trace.model import parse

pytestmark = pytest.mark.skipif(
    "MEMTIDE_REPLAY" not in os.environ, reason="MEMTIDE_REPLAY does not name the program"
)
_TRAINS = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(7):
    optimizer.zero_grad()
    model(torch.randn(2, 512)).square().mean().backward()
    optimizer.step()
"""
_SSD_POOL = "--ssd-pool=256MiB"
_LONG_S = 60.0


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The trace of a run whose host pool has room for 8 of its chunks of 2 MiB."""
    folder = tmp_path_factory.mktemp("larger_pool")
    script, trace = folder / "train.py", folder / "run.trace.gz"
    script.write_text(_TRAINS, encoding="utf-8")
    pools = ["--device=none", "--host-pool=16MiB", _SSD_POOL]
    Cli(folder).memtide("run", "--quiet", *pools, f"--trace={trace}", script).check()
    return gzip.decompress(trace.read_bytes())


def test_the_gain_is_the_replays_with_the_stalls_of_the_run(
    raw: bytes, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(larger_pool, "_stalled_seconds", lambda _trace: 7.0)
    line = line_about_larger_pool(raw, 1 << 40, _LONG_S)
    path = tmp_path / "run.trace.gz"
    path.write_bytes(gzip.compress(raw))
    replay = ("replay", "--json", "--policy=memtide", *larger_pool.link_flags(parse(raw)))
    present, twice, whole = (
        json.loads(cli.memtide(*replay, f"--host-slots={slots}", path).check().out)[0]
        for slots in ("8", "16", "100%")
    )
    stalls = [each["policies"][0]["stalled_seconds"] for each in (present, twice, whole)]
    computing_s = present["policies"][0]["seconds"] - stalls[0]
    times = [computing_s + 7.0 * stall / stalls[0] for stall in stalls]
    assert line == (
        f"host pool of 32.0 MiB: {times[0] / times[1]:.1f}x faster, "
        f"of {present['chunks'] * 2:.1f} MiB (holds all): {times[0] / times[2]:.1f}x, by replay"
    )


def test_a_pool_for_which_the_machine_has_no_room_is_not_recommended(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(larger_pool, "_stalled_seconds", lambda _trace: 7.0)
    line = line_about_larger_pool(raw, 16 << 20, _LONG_S)
    assert line is not None
    assert "holds all" not in line
    assert line_about_larger_pool(raw, (16 << 20) - 1, _LONG_S) is None


def test_a_gain_of_less_than_a_tenth_is_not_worth_a_line(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(larger_pool, "_stalled_seconds", lambda _trace: 1e-6)
    assert line_about_larger_pool(raw, 1 << 40, _LONG_S) is None


def test_a_replay_that_does_not_end_in_time_says_nothing(raw: bytes) -> None:
    assert line_about_larger_pool(raw, 1 << 40, 0.0) is None


def test_a_trace_of_a_run_whose_chunks_all_fit_says_nothing() -> None:
    without_host = gzip.decompress((REPOSITORY / "bench/traces/gpt.trace.gz").read_bytes())
    assert line_about_larger_pool(without_host, 0, _LONG_S) is None
    assert line_about_larger_pool(b"", 1 << 40, _LONG_S) is None


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_only_a_run_that_comes_to_its_end_is_replayed(
    ending: str, cli: Cli, tmp_path: Path
) -> None:
    script, replays = tmp_path / "train.py", tmp_path / "memtide-replay"
    script.write_text(_TRAINS + ending, encoding="utf-8")
    times = '{"seconds": %s, "stalled_seconds": %s}'
    played = f'[{{"host_slots": %s, "chunks": 99, "policies": [{times}]}}]'
    replays.write_text(
        "#!/bin/sh\ncase $* in\n"
        f"*slots=8*) echo '{played % (8, 1e-4, 1e-4)}';;\n"
        f"*slots=16*) echo '{played % (16, 5e-5, 5e-5)}';;\n"
        f"*) echo '{played % (99, 2.5e-5, 2.5e-5)}';;\nesac\n",
        encoding="utf-8",
    )
    replays.chmod(0o755)
    pools = ("--device=none", "--host-pool=16MiB", _SSD_POOL)
    done = cli.memtide("run", *pools, script, MEMTIDE_REPLAY=replays)
    lines = [line for line in done.err.splitlines() if "by replay" in line]
    expected = (
        "memtide: host pool of 32.0 MiB: 2.0x faster, of 198 MiB (holds all): 4.0x, by replay"
    )
    assert lines == ([] if "Keyboard" in ending else [expected]), done.err
    assert re.search("chunks leased", done.err)
