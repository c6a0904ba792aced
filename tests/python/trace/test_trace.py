"""Traces are parsed, saved to files and exported to viewers. Their bytes are built by hand."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trace_builder as build
from harness import REPOSITORY, Cli
from memtide import errors
from memtide._activations.explain import TracedActivations
from memtide._trace import files as trace_files
from memtide._trace import model as traces
from memtide._trace import perfetto
from memtide.errors import InvalidArgument, UsageError


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.trace.gz"
    trace_files.save(build.two_layers(), path)
    return path


def test_a_trace_is_read_as_it_was_made() -> None:
    read = traces.parse(build.two_layers())
    assert (read.job_id, read.chunk_bytes) == (7, 4 << 20)
    assert read.slots == {"device": 3, "host": 8, "ssd": 64}
    third = read.moments[2]
    assert str(third) == "2 (backward, Linear)"
    assert third.uses == ((1, "read"), (2, "allocate"), (2, "write"))
    assert third.time_s == 0.02
    assert read.moments[0].own_host_bytes == 100 << 20
    assert read.chunks[0] == traces.Chunk(0, 900, "parameter", next_use=8)
    assert read.chunks[1].next_use is None
    victim = read.transfers[3]
    assert (victim.link, victim.reason, victim.next_use) == ("device → host", "evict", 3)
    assert [transfer.link for transfer in read.transfers[2:5:2]] == [
        "zeros → device",
        "device dropped",
    ]
    assert [stall.waited_for for stall in read.stalls] == ["ssd", "room"]
    assert list(read.spans())[-1] == (read.moments[5], read.end_s)


def test_a_trace_of_nothing_is_one() -> None:
    empty = traces.parse(b"")
    assert empty.moments == ()
    assert empty.end_s == 0.0
    assert [event["ph"] for event in perfetto.events(empty)] == ["M"] * 6


def test_the_same_trace_is_the_same_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.trace.gz", "other.trace.gz")]
    for file in files:
        trace_files.save(build.two_layers(), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert trace_files.load(files[0]) == build.two_layers()


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="13 bytes are not a memtide trace"):
        traces.parse(b"not a message")
    file = tmp_path / "cut.trace.gz"
    file.write_bytes(gzip.compress(build.two_layers())[:-20])
    for path in (file, tmp_path / "none.trace.gz", Path(__file__)):
        with pytest.raises(UsageError, match="cannot be read as a trace"):
            trace_files.load(path)


def test_a_daemon_that_knows_no_traces_is_an_error_with_words() -> None:
    assert str(errors.from_status(12, "")) == (
        "The daemon does not have this call: it is older than this package."
    )
    assert str(errors.from_status(12, "no")) == "no"


def by_rows(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By the name of a row, its slices and instants."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            rows[names[event["pid"], event["tid"]]].append(event)
    return rows


def test_viewers_get_a_row_for_each_thing() -> None:
    rows = by_rows(list(perfetto.events(traces.parse(build.two_layers()))))
    assert [e["name"] for e in rows["iterations"]] == ["iteration 0"]
    assert rows["iterations"][0]["dur"] == 50_000
    assert [e["name"] for e in rows["phases"]] == ["forward", "backward", "step", "forward"]
    assert [e["name"] for e in rows["moments"]][:2] == ["Embedding", "Linear"]
    assert {e["name"] for e in rows["stalls"]} == {"waits for ssd", "waits for room"}
    moved = {row for row in rows if "→" in row or "dropped" in row}
    assert moved == {
        "ssd → host", "host → ssd", "host → device", "device → host", "zeros → device",
        "device dropped",
    }  # fmt: skip
    (victim,) = rows["device → host"]
    assert (victim["name"], victim["ts"], victim["dur"]) == ("evict 0", 21_000, 4_000)
    assert victim["args"] == {
        "chunk": 0, "kind": "parameter", "reason": "evict", "moment": 2, "next use": 3, "nearer": 2
    }  # fmt: skip
    colours = [(e["name"].split()[0], e["cname"]) for e in rows["host → device"]]
    assert len(set(colours)) == 3  # One colour by reason: prefetch, request, demand.
    assert rows["device dropped"][0]["ph"] == "i"
    assert [e["name"] for e in rows["chunk 1 (parameter)"]] == ["read", "read", "write"]
    assert [e["name"] for e in rows["chunk 2"]] == ["allocate, write", "write", "read, free"]


def test_an_export_has_the_time_of_its_first_moment_as_torchs_profiler_has(tmp_path: Path) -> None:
    old = traces.parse(build.two_layers())
    assert old.first_moment_unix_ns == 0
    for trace, expected in ((old, None), (replace(old, first_moment_unix_ns=5), 5)):
        perfetto.write(trace, tmp_path / "run.json")
        document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
        assert document.get("baseTimeNanoseconds") == expected


def test_slices_of_a_row_never_overlap() -> None:
    moves = [
        build.move(n, build.SSD, build.HOST, build.DEMAND, n % 7, 1 + n % 3, 0) for n in range(30)
    ]
    read = traces.parse(build.trace([build.moment(build.FORWARD, "Linear", 0)], moves=moves))
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in perfetto.events(read):
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == 30 + 2
    for spans in rows.values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] for a, b in zip(ordered, ordered[1:], strict=False))


def test_export_writes_what_the_suffix_says(cli: Cli, trace_file: Path, tmp_path: Path) -> None:
    shown, raw, odd = (tmp_path / name for name in ("t.json", "again.trace.gz", "bytes"))
    cli.memtide("trace", "export", "--trace", trace_file, shown).check()
    assert len(json.loads(shown.read_text(encoding="utf-8"))["traceEvents"]) > 20
    cli.memtide("trace", "export", "--trace", trace_file, raw).check()
    cli.memtide("trace", "export", "--trace", trace_file, "--raw", odd).check()
    assert raw.read_bytes() == odd.read_bytes() == trace_file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["trace", "export", "--trace", "none.trace.gz", "t.json"], 2, "cannot be read as a trace"),
        (["trace", "export", "--socket-dir", "/nowhere", "t.json"], 1, "no daemon at /nowhere;"),
        (["trace", "export", "t.txt"], 2, "'t.txt' is neither"),
        (["trace", "export", "/nowhere/t.json"], 2, "no directory to write"),
        (["trace", "export", "--trace", "x", "--job", "3", "t.json"], 2, "--trace names a file"),
        (["explain", "--trace", "none.trace.gz", "3"], 2, "cannot be read as a trace"),
        (["explain", "3", "layers.0"], 2, "BLOCK comes after `activations`"),
        (["run", "--trace", "t.txt", "train.py"], 2, "'t.txt' is neither"),
    ],
)
def test_bad_usage_is_told(
    arguments: list[str], status: int, message: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    done = cli.memtide(*arguments, cwd=tmp_path)
    assert (done.status, "Traceback" in done.err) == (status, False)
    assert message in done.err


def test_a_module_that_the_trace_does_not_have_is_refused(cli: Cli, trace_file: Path) -> None:
    done = cli.memtide("explain", "--trace", trace_file, "layers.3")
    assert (done.status, done.out) == (2, "")
    assert "no chunk of a module 'layers.3'; its modules are Embedding, Linear\n" in done.err
    by_name = cli.memtide("explain", "--trace", trace_file, "Embedding.weight").check().out
    assert by_name == cli.memtide("explain", "--trace", trace_file, "0").check().out


def test_explain_reads_a_file(cli: Cli, trace_file: Path) -> None:
    history = cli.memtide("explain", "--trace", trace_file, "0").check().out
    assert "evicted from the device at moment 2 (backward, Linear)" in history


def test_a_reader_that_has_seen_enough_is_no_error(cli: Cli, tmp_path: Path) -> None:
    moments = [build.moment(build.FORWARD, "L", n, (1, n % 2)) for n in range(20_000)]
    trace_files.save(build.trace(moments), tmp_path / "long.trace.gz")
    script = tmp_path / "head.py"
    script.write_text(
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'memtide', 'explain', '--trace', sys.argv[1], '1']\n"
        "with subprocess.Popen(command, stdout=subprocess.PIPE) as history:\n"
        "    history.stdout.readline()\n"
        "    history.stdout.close()\n"
        "sys.exit(history.wait())\n",
        encoding="utf-8",
    )
    done = cli.python(script, tmp_path / "long.trace.gz").check()
    assert done.err == ""


def documented_commands(section: str) -> list[list[str]]:
    """The arguments of the commands in a section of docs/traces.md."""
    document = (REPOSITORY / "docs" / "traces.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^## {section}$(.*?)^## ", document, re.MULTILINE | re.DOTALL)
    return [line.split() for line in re.findall(r"^\$ memtide (.*)$", text, re.MULTILINE)]


def test_the_documents_commands_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(12)))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(6):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(8, 512)).square().mean().backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    commands = documented_commands("Look at one run")
    assert len(commands) == 3
    outcomes = [cli.memtide(*command, cwd=tmp_path).check() for command in commands]

    assert (tmp_path / "tide.html").stat().st_size < 2**20
    read = traces.parse(trace_files.load(tmp_path / "run.trace.gz"))
    assert len(read.iteration_ends) >= 2
    start, end = read.iteration_ends[-2:]
    iteration = read.moments[start:end]
    names = [(moment.phase, moment.name) for moment in iteration]
    layers = [str(layer) for layer in range(12)]
    assert names[:12] == [("forward", layer) for layer in layers]
    assert names[12:24] == [("backward", layer) for layer in reversed(layers)]
    assert names[24] == ("step", "Adam")
    used = {chunk for moment in iteration for chunk, _ in moment.uses}
    kinds = {read.chunks[chunk].kind for chunk in used}
    assert kinds == {"parameter", "gradient", "optimizer state"}
    assert all(moment.own_host_bytes > 10 << 20 for moment in iteration)
    assert {"demand", "evict"} <= {transfer.reason for transfer in read.transfers}
    rows = by_rows(json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["traceEvents"])
    assert {"moments", "ssd → host", "host → ssd"} <= set(rows)
    lines = outcomes[2].out.splitlines()
    assert lines[0].startswith("chunk 3: ")
    assert len(lines) > 1


def test_the_documents_commands_for_activations_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Layer(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.wide, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)\n"
        "    def forward(self, x):\n"
        "        return x + self.narrow(nn.functional.gelu(self.wide(x)))\n"
        "model = nn.Sequential(nn.Linear(256, 256), *(Layer() for _ in range(8)))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(7):\n"
        "    model(torch.randn(1024, 256)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        encoding="utf-8",
    )
    commands = documented_commands("Activations")
    assert len(commands) == 4
    _, plan, block, replayed = (
        cli.memtide(*command, cwd=tmp_path).check().out for command in commands
    )
    lines = plan.splitlines()
    assert lines[1].startswith("8 blocks: ")
    assert "moved to host memory" in plan
    assert lines[-1].startswith("what is saved outside of blocks: ")
    assert [line.split(":")[0] for line in block.splitlines()] == ["2, input", "2, rest"]
    assert set(block.splitlines()) <= set(lines)
    assert "packed in moment 4 (forward, 2.narrow), unpacked in 29 (backward, 2.narrow)" in block
    assert "slots of 2 MiB for chunks" in replayed

    read = traces.parse(trace_files.load(tmp_path / "budget.trace.gz"))
    held = TracedActivations(read).held_by
    number = next(number for number in read.chunks if " (rest)" in (held(number) or ""))
    done = cli.memtide("explain", "--trace", "budget.trace.gz", number, cwd=tmp_path).check()
    assert done.out.splitlines()[1] == held(number)
