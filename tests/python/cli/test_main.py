"""The command line: the scripts it runs, the arguments it refuses, and its messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PACKAGE_PARENT, Cli, short_directory
from memtide._cli.main import main
from memtide._daemon import private_daemon

POOLS = ("--host-pool=16MiB", "--ssd-pool=64MiB")

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    return script


# The wheel's entry point runs as a script, the other programs with -P.
@pytest.mark.parametrize("options", [["-m"], ["-P", "-m"]])
def test_a_script_sees_what_it_sees_without_memtide(
    options: list[str], cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import json, sys, os, __main__\n"
        "assert __main__.__dict__ is globals() and __name__ == '__main__'\n"
        "assert 'torch' not in sys.modules\n"
        "class Local: pass\n"
        "import pickle; pickle.loads(pickle.dumps(Local()))\n"
        "print(json.dumps([sys.argv, sys.path[0], __file__, __doc__, __package__,\n"
        "                  __spec__ is None, __annotations__]))\n",
        encoding="utf-8",
    )
    plain = cli.python("look.py", "--host-pool", "x", "-v", cwd=tmp_path).check()
    run = [*options, "memtide", "run", *POOLS, "look.py", "--host-pool", "x", "-v"]
    ours = cli.python(*run, cwd=tmp_path).check()
    assert json.loads(ours.out) == json.loads(plain.out)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("this is no Python", 1),
    ],
)
def test_a_script_ends_with_its_own_status(
    body: str, status: int, cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"def f():\n    {body}\nf()\n", encoding="utf-8")
    plain, ours = cli.python(script), cli.memtide("run", "--quiet", *POOLS, script)
    assert plain.status == ours.status == status
    assert ours.out == plain.out
    assert ours.err == plain.err


def test_stats_are_written_when_nobody_reads_the_summary(
    cli: Cli, train: Path, tmp_path: Path
) -> None:
    stats, gone = tmp_path / "stats.json", tmp_path / "gone"
    os.mkfifo(gone)
    # open() of a FIFO returns when another process opens its other end.
    wait = f"print('trained', flush=True)\nopen({str(gone)!r}).close()\n"
    train.write_text(TRAIN + wait, encoding="utf-8")
    running = cli.start_memtide("run", *POOLS, "--stats", stats, train)
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == "trained\n"
    running.stderr.close()
    gone.open("w").close()
    running.stdout.read()
    running.wait(60)
    assert json.loads(stats.read_text(encoding="utf-8"))["iterations"] == 4


def test_the_tide_is_drawn_when_the_order_is_known(cli: Cli, train: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    train.write_text(TRAIN.replace("range(4)", "range(8)"), encoding="utf-8")
    drawn = {}
    for wished in ("6", "2"):
        more = ("--tide", tmp_path / "tide.html", "--tide-iteration", wished)
        cli.memtide("run", "--quiet", *POOLS, "--stats", stats, *more, train).check()
        drawn[wished] = json.loads(stats.read_text(encoding="utf-8"))["tide"]["iteration"]
    assert drawn == {"6": 6, "2": 2}


def test_stats_and_tide_are_written(cli: Cli, train: Path, tmp_path: Path) -> None:
    stats, tide = tmp_path / "stats.json", tmp_path / "tide.png"
    done = cli.memtide("run", *POOLS, "--stats", stats, "--tide", tide, train).check()
    assert tide.read_bytes().startswith(b"\x89PNG")
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    assert statistics["iterations"] == 4
    assert statistics["tide"]["iteration"] == 3
    for sample in statistics["tide"]["samples"]:
        assert sample["budget_bytes"] == {"host": 16 << 20, "ssd": 64 << 20}
        assert sample["own_host_bytes"] > 10 << 20
    phases = [sample["phase"] for sample in statistics["tide"]["samples"]]
    assert phases.index("forward") < phases.index("backward") < phases.index("step")
    for pool in statistics["pools"]:
        parts = ("used", "reserved", "quarantined", "ballooned", "scrubbing", "free")
        assert sum(pool[f"{part}_bytes"] for part in parts) == pool["capacity_bytes"]
    kinds = statistics["kinds"]
    assert kinds["optimizer_state"]["allocated_bytes"] >= 2 * 8 * 512 * 512 * 4
    # Its arena has 10 MiB, one chunk of 2 MiB more than the weights and biases fill.
    parameter_bytes = kinds["parameter"]["allocated_bytes"]
    assert parameter_bytes - statistics["shadow_bytes"].get("parameter", 0) == 10 << 20
    assert statistics["moved_bytes"]["ssd_written_bytes"] > 0
    for link, moved in statistics["moved_bytes"].items():
        assert sum(record["moved_bytes"][link] for record in statistics["records"]) <= moved
    assert sum(record["iterations"] for record in statistics["records"]) == statistics["iterations"]
    for word in ("4 steps", "parameter", "gradient", "optimizer state", "host", "ssd"):
        assert word in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "no script at 'nowhere.py'"),
        (["--host-pool", "lots", "train.py"], "'lots' is not a size"),
        (["--chunk-size", "3MiB", "train.py"], "not a multiple of 2 MiB"),
        (["--stats", "/nowhere/stats.json", "train.py"], "no directory to write"),
        (["--stats", "/proc/stats.json", "train.py"], "'/proc/stats.json' cannot be written: No s"),
        (["--stats", ".", "train.py"], "'.' cannot be written: it is a directory"),
        (["--tide", "/nowhere/tide.png", "train.py"], "no directory to write"),
        (["--tide", "/proc/tide.html", "train.py"], "'/proc/tide.html' cannot be written"),
        (["--tide", "x.gif", "train.py"], ".png or .svg or .pdf or .html: 'x.gif' is none of them"),
        (["--trace", "/proc/trace.json", "train.py"], "'/proc/trace.json' cannot be written"),
        (["--ssd-dir", "no/where", "train.py"], "/no/where: there is no directory /"),
        (["--tide-iteration", "0", "train.py"], "counts from 1"),
        (["--durable", "train.py"], "--durable needs the name of a job: --job NAME"),
        (["--job=j", "--durable-every=0", "train.py"], "--durable-every is at least 1 step"),
        (["--host-pool=6MiB", "train.py"], "--host-pool 6.00 MiB is too small: a run needs at lea"),
        (["--ssd-pool=1MiB", "train.py"], "--ssd-pool 1.00 MiB is too small: a run needs at least"),
    ],
)
def test_bad_usage_is_told_before_anything_starts(
    arguments: list[str], message: str, cli: Cli, train: Path
) -> None:
    done = cli.memtide("run", *arguments, cwd=train.parent, MEMTIDED="/nonexistent")
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert done.err.startswith("memtide: ")
    assert done.err.count("\n") == 1
    assert list(train.parent.iterdir()) == [train]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: SCRIPT"),
        (["--quiet"], "the following arguments are required: SCRIPT"),
        (["--hots-pool=16MiB", "train.py"], "no option '--hots-pool'; is it --host-pool?"),
        (["--epochs", "3", "train.py"], "no option '--epochs'"),
        (["--host-pool"], "argument --host-pool: expected one argument"),
    ],
)
def test_a_wrong_option_is_refused_with_the_usage_of_run(
    arguments: list[str], message: str, cli: Cli, train: Path
) -> None:
    done = cli.memtide("run", *arguments, cwd=train.parent, MEMTIDED="/nonexistent")
    assert (done.status, done.out) == (2, "")
    usage = "usage: memtide run [options] SCRIPT [ARGS]; memtide run --help lists the options"
    assert done.err.splitlines() == [f"memtide: {message}", usage]


def test_a_missing_daemon_program_is_named(cli: Cli, train: Path) -> None:
    done = cli.memtide("run", *POOLS, train, MEMTIDED="/nonexistent/memtided")
    assert done.status == 1
    assert "MEMTIDED names /nonexistent/memtided" in done.err
    assert "Traceback" not in done.err


def test_a_daemon_that_will_not_start_is_quoted(cli: Cli, train: Path) -> None:
    done = cli.memtide("run", "--host-pool=900TiB", "--ssd-pool=64MiB", train)
    assert done.status == 1
    assert "900" in done.err
    assert "--host-pool" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("device_mib", "host_mib", "chunk_mib"),
    [(0, 16, 2), (0, 200, 8), (96, 192, 8), (96, 100, 4), (40, 192, 2)],
)
def test_chunks_are_a_24th_of_the_host_pool_and_at_most_a_12th_of_the_device_pool(
    device_mib: int, host_mib: int, chunk_mib: int, cli: Cli, train: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    device = ["--device=emulated", f"--device-pool={device_mib}MiB"] if device_mib else []
    pools = [*(device or ["--device=none"]), f"--host-pool={host_mib}MiB", "--ssd-pool=256MiB"]
    cli.memtide("run", "--quiet", *pools, "--stats", stats, train).check()
    assert json.loads(stats.read_text(encoding="utf-8"))["chunk_bytes"] == chunk_mib << 20


def test_a_run_says_which_size_of_chunk_would_have_suited_its_model(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "four.py"
    script.write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(9)))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.randn(8, 512)).square().mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    print(loss.item().hex())\n",
        encoding="utf-8",
    )
    # A 24th of the host pool is 8 MiB. The arenas need 2, 2 and 3 such chunks; the SSD pool has 5.
    pools = ("--host-pool=192MiB", "--ssd-pool=40MiB")
    guessed = cli.memtide("run", *pools, script)
    assert guessed.status == 1
    assert "--chunk-size 2MiB" in guessed.err
    done = cli.memtide("run", *pools, "--chunk-size", "2MiB", script).check()
    assert "--chunk-size" not in done.err
    assert done.out == cli.python(script).check().out


def test_a_private_daemon_leaves_nothing_behind(cli: Cli, train: Path, tmp_path: Path) -> None:
    with short_directory() as runtime_dir:
        cli.memtide("run", "--quiet", *POOLS, train, XDG_RUNTIME_DIR=runtime_dir).check()
        assert list(runtime_dir.iterdir()) == []
    assert list((tmp_path / "cache" / "memtide" / "private").iterdir()) == []


def test_a_private_daemon_ends_with_a_script_that_is_killed(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "die.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8")
    # The daemon has the FIFO's write end open while it runs, so reading ends when it ends.
    fifo, daemon = tmp_path / "fifo", tmp_path / "memtided"
    os.mkfifo(fifo)
    real = os.environ["MEMTIDED"]
    lists_gpus = f'[ "$1" = --list-gpus ] && exec {real} "$@"'  # It ends before the daemon begins.
    daemon.write_text(f'#!/bin/sh\n{lists_gpus}\nexec {real} "$@" 9>{fifo}\n', encoding="utf-8")
    daemon.chmod(0o700)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        done = cli.memtide("run", "--quiet", *POOLS, script, MEMTIDED=daemon)
        assert done.status == -signal.SIGKILL
        assert reader.communicate(timeout=60)[0] == b""


@pytest.mark.parametrize("command", [["status"], ["trace", "export", "t.json"], ["explain", "3"]])
def test_what_asks_a_daemon_says_in_a_line_that_there_is_none(
    command: list[str], cli: Cli, tmp_path: Path
) -> None:
    expected = f"memtide: no daemon at {tmp_path}; start one with memtided --socket-dir {tmp_path},"
    for more, environment in (
        (["--socket-dir", tmp_path], {}),
        ([], {"MEMTIDE_SOCKET_DIR": tmp_path}),
    ):
        done = cli.memtide(*command, *more, cwd=tmp_path, **environment)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(expected)
        assert done.err.count("\n") == 1


def test_a_daemon_that_is_not_for_this_user_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Root may connect to every socket.
    monkeypatch.setattr(private_daemon, "refusal", lambda _where: PermissionError(13, "denied"))
    assert main(["status", "--socket-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"memtide: permission denied at {tmp_path}: put this user into the g")


def test_status_shows_pools_kinds_and_sessions(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        TRAIN
        + "import subprocess, sys\n"
        + "subprocess.run([sys.executable, '-m', 'memtide', 'status', '--socket-dir', sys.argv[1]],"
        + " check=True)\n",
        encoding="utf-8",
    )
    # The table has the command lines of processes, and forked ones have that of their server.
    own = cli.in_new_interpreters()
    with short_directory() as sockets:
        done = own.memtide("run", "--quiet", *POOLS, "--socket-dir", sockets, script, sockets)
        done.check()
    for word in ("memtided", "serving", "host", "ssd", "parameter", "fetches", str(sockets)):
        assert word in done.out, done.out


def test_doctor_finds_what_is_there(cli: Cli, tmp_path: Path) -> None:
    done = cli.memtide("doctor", "--ssd-dir", tmp_path)
    for subject in (
        "libmemtide.so",
        "memtided",
        "huge pages",
        "userfaultfd",
        "io_uring",
        "locked memory",
        "SSD directory",
        "torch",
    ):
        assert subject in done.out
    release = (PACKAGE_PARENT.parent / "VERSION").read_text().strip()
    assert release in done.out
    assert done.status == 0


def test_doctor_says_what_is_missing(cli: Cli) -> None:
    done = cli.memtide("doctor", MEMTIDE_LIBRARY="/nonexistent.so")
    assert done.status == 1
    assert "MEMTIDE_LIBRARY names /nonexistent.so" in done.out


def test_the_command_is_told_apart_from_the_scripts_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memtide", "--help"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    for command in ("run", "status", "trace", "explain", "doctor"):
        assert command in done.stdout
