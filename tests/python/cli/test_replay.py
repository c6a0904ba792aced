"""`memtide replay` simulates recorded traces of real models with other pools."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from harness import Cli

pytestmark = pytest.mark.skipif(
    "MEMTIDE_REPLAY" not in os.environ, reason="MEMTIDE_REPLAY does not name the program"
)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def _loop(iterations: int, chunks: int) -> bytes:
    """A memtide.v1.Trace of a loop that writes every chunk once, in one moment per iteration."""
    uses = b"".join(_varint(chunk * 4 + 1) for chunk in range(chunks))
    moment = b"\x32" + _varint(len(uses)) + uses
    trace = b"\x18" + _varint(2 << 20) + b"\x20\x04\x28\x04"
    trace += (b"\x42" + _varint(len(moment)) + moment) * iterations
    return trace + b"".join(b"\x48" + _varint(end + 1) for end in range(iterations))


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    path = tmp_path / "loop.trace.gz"
    path.write_bytes(gzip.compress(_loop(4, 6)))
    return path


def test_a_table_names_the_policies(cli: Cli, loop: Path) -> None:
    done = cli.memtide("replay", loop).check()
    assert "6 chunks of 2 MiB, 4 slots on the device, 4 on the host" in done.out
    for policy in ("lru", "fifo", "patrickstar", "belady", "memtide", "optimum"):
        assert policy in done.out


def test_json_has_bytes_and_seconds(cli: Cli, loop: Path) -> None:
    done = cli.memtide("replay", "--json", "--policy", "lru", "--host-slots", "6", loop).check()
    (comparison,) = json.loads(done.out)
    (lru,) = comparison["policies"]
    assert lru["to_device_bytes"] == lru["from_device_bytes"] == 6 * 2**21
    assert lru["ssd_read_bytes"] == 0
    assert lru["seconds"] >= lru["stalled_seconds"] > 0


def test_its_help_is_the_programs_own(cli: Cli) -> None:
    assert "--link-gbps" in cli.memtide("replay", "--help").check().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--policy", "best", "{loop}"), 2, 'no policy "best"; there are lru'),
        (("--device-slots", "x", "{loop}"), 2, "neither a number of slots"),
        (("--device-slots", "3", "{loop}"), 1, "a tier needs 4 slots at least"),
        (("{loop}.not",), 1, "the file cannot be read"),
        ((__file__,), 1, "is not a trace"),
        (("--activations", "{loop}"), 1, "the trace has no profile of activations"),
        (("--activations", __file__), 1, "is not a trace"),
        (("--activations", "{loop}", "{loop}", "{loop}"), 2, "takes one TRACE"),
        ((), 2, "TRACE is required"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    arguments: tuple[str, ...], status: int, message: str, cli: Cli, loop: Path
) -> None:
    done = cli.memtide("replay", *(argument.format(loop=loop) for argument in arguments))
    assert done.status == status
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_trace_that_is_cut_is_refused(cli: Cli, loop: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.trace.gz"
    cut.write_bytes(loop.read_bytes()[:-20])
    done = cli.memtide("replay", cut)
    assert done.status == 1
    assert "it is cut" in done.err
