"""Errors that a script does not catch are shown as Python shows them, without memtide's frames."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from harness import PACKAGE_PARENT, Cli, short_directory

_POOLS = ("--device=none", "--host-pool=16MiB", "--ssd-pool=64MiB")
# Functions in a file of memtide: one calls the script, the others fail.
_OF_MEMTIDE = f"""
import memtide
text = '''
def call(function):
    return function()
def fail():
    try:
        raise KeyError('only memtide met it')
    except KeyError:
        raise memtide.MemtideError('there is no room')
def mistake():
    return [][7]
def fail_in_library():
    import json
    json.loads('this is no JSON')
'''
exec(compile(text, {str(PACKAGE_PARENT / "memtide" / "made.py")!r}, 'exec'))
"""
_FAILS_IN_FAILURE = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    "
_TRAINS_FOREVER = """
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    print("stepped", flush=True)
"""
_LARGE = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(12)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def _functions(shown: str) -> list[str]:
    """The names of the functions in a traceback."""
    return re.findall(r'File ".*", line \d+, in (.*)', shown)


def test_the_frames_of_memtide_are_left_out(cli: Cli, script: Path) -> None:
    script.write_text(_OF_MEMTIDE + "def of_script(): 1 / 0\ncall(of_script)\n", encoding="utf-8")
    done = cli.memtide("run", *_POOLS, script)
    assert done.status == 1
    assert _functions(done.err) == ["<module>", "of_script"]
    assert done.err.endswith("ZeroDivisionError: division by zero\n")


def test_frames_of_pythons_library_that_memtide_has_called_are_left_out(
    cli: Cli, script: Path
) -> None:
    script.write_text(_OF_MEMTIDE + "fail_in_library()\n", encoding="utf-8")
    assert _functions(cli.memtide("run", *_POOLS, script).err) == ["<module>"]
    script.write_text("import json\njson.loads('no')\n", encoding="utf-8")
    assert "decode" in _functions(cli.memtide("run", *_POOLS, script).err)


def test_what_only_memtide_met_before_is_left_out(cli: Cli, script: Path) -> None:
    script.write_text(_OF_MEMTIDE + "fail()\n", encoding="utf-8")
    done = cli.memtide("run", *_POOLS, script)
    assert _functions(done.err) == ["<module>"]
    assert "only memtide met it" not in done.err
    assert done.err.endswith("memtide.errors.MemtideError: there is no room\n")


def test_a_mistake_in_memtide_is_shown_with_its_frames(cli: Cli, script: Path) -> None:
    script.write_text(_OF_MEMTIDE + "mistake()\n", encoding="utf-8")
    assert _functions(cli.memtide("run", *_POOLS, script).err) == ["<module>", "mistake"]
    script.write_text(_OF_MEMTIDE + "call(lambda: [][7])\n", encoding="utf-8")
    assert _functions(cli.memtide("run", *_POOLS, script).err) == ["<module>", "<lambda>"]


@pytest.mark.parametrize(
    "body",
    [
        "1 / 0",
        _FAILS_IN_FAILURE + "raise KeyError(3) from error",
        _FAILS_IN_FAILURE + "open('nowhere')",
        "import sys\nsys.excepthook = lambda *error: print(error[0], file=sys.stderr)\n1 / 0",
        "import signal\ndef f(): signal.raise_signal(signal.SIGINT)\nf()",
        "this is no Python",
    ],
)
def test_a_script_that_trained_nothing_fails_as_without_memtide(
    body: str, cli: Cli, script: Path
) -> None:
    script.write_text(body + "\n", encoding="utf-8")
    plain, ours = cli.python(script), cli.memtide("run", *_POOLS, script)
    assert (ours.status, ours.out, ours.err) == (plain.status, plain.out, plain.err)
    assert plain.status == (-signal.SIGINT if "SIGINT" in body else 1)


def test_the_traceback_of_a_script_that_trained_comes_last(cli: Cli, script: Path) -> None:
    script.write_text(_LARGE + "1 / 0\n", encoding="utf-8")
    done = cli.memtide("run", *_POOLS[:-1], "--ssd-pool=256MiB", script)
    assert done.status == 1
    summary, _, shown = done.err.partition("Traceback (most recent call last)")
    assert "chunks leased" in summary
    assert _functions(shown) == ["<module>"]
    assert shown.endswith("ZeroDivisionError: division by zero\n")


def test_an_interrupt_ends_a_training_with_the_frames_of_the_script(cli: Cli, script: Path) -> None:
    script.write_text(_TRAINS_FOREVER, encoding="utf-8")
    with short_directory() as runtime_dir:
        running = cli.start_memtide("run", *_POOLS, script, XDG_RUNTIME_DIR=runtime_dir)
        assert running.stdout is not None
        assert running.stdout.readline() == "stepped\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        assert list(runtime_dir.iterdir()) == []
    assert running.returncode == -signal.SIGINT  # A shell's $? is 130.
    summary, _, shown = err.partition("Traceback (most recent call last)")
    assert "chunks leased" in summary
    assert str(script) in shown
    assert str(PACKAGE_PARENT) not in shown
    assert shown.endswith("\nKeyboardInterrupt\n")


def test_a_model_without_room_ends_with_the_size_that_it_needs(cli: Cli, script: Path) -> None:
    script.write_text(_LARGE, encoding="utf-8")
    pools = ["--device=none", "--host-pool=16MiB"]
    done = cli.memtide("run", *pools, "--ssd-pool=24MiB", script)
    assert done.status == 1
    assert "Traceback" not in done.err
    named = re.fullmatch(
        r"memtide: the ssd pool's 24\.0 MiB are full; --ssd-pool (\d+MiB) holds the model's "
        "parameters, gradients and optimizer states",
        done.err.splitlines()[-1],
    )
    assert named is not None
    cli.memtide("run", *pools, f"--ssd-pool={named[1]}", script).check()


def test_a_model_that_is_not_made_yet_needs_more_than_is_named(cli: Cli, script: Path) -> None:
    script.write_text(_LARGE.replace("range(12)", "range(64)"), encoding="utf-8")
    done = cli.memtide("run", "--device=none", "--host-pool=16MiB", "--ssd-pool=24MiB", script)
    assert done.status == 1
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1] == (
        "memtide: the ssd pool's 24.0 MiB are full before the model is made: "
        "with gradients and the states of Adam it needs more than --ssd-pool 96MiB"
    )
