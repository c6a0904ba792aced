"""An interpreter that a forked process starts is forked, too, and does what a new one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_process import ForkedProcess
from harness import Cli, Outcome

_SHOWS = """
import os, sys
print(__name__, sys.argv, sys.orig_argv, sys.executable, sys.flags.safe_path, sys.path)
print(os.getcwd(), sorted(os.environ.items()), os.getsid(0) == os.getpid(), os.umask(0))
print(sys.stdout.write_through, sys.stderr.write_through, sys.stdin.isatty(), flush=True)
print("torch" in sys.modules, os.listdir("/proc/self/fd"), file=sys.stderr)
"""
# The program itself may be on the command line.
_IS_FORKED = "'fork_' + 'server.py' in open('/proc/self/cmdline').read()"


def _starts(child: str, options: str = "", more: str = "") -> str:
    """A program that starts `python OPTIONS -c CHILD a -b`, and prints its return code."""
    return (
        "import os, signal, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, *{options.split()}, '-c', {child!r}, 'a', '-b']"
        f"{more and ', '}{more})\n"
        "print(child.wait())\n"
    )


def _both(cli: Cli, *command: object, **more: object) -> tuple[Outcome, Outcome]:
    with cli.start_python(*command, **more) as process:
        assert isinstance(process, ForkedProcess)
        out, err = process.communicate()
    return Outcome(process.returncode, out, err), cli.in_new_interpreters().python(*command, **more)


@pytest.mark.parametrize("options", ["", "-u -P -B"])
@pytest.mark.parametrize(
    "more",
    [
        "",
        "cwd='/tmp', env={**os.environ, 'COLUMNS': '7', 'TORCHELASTIC_RUN_ID': 'é'}",
        "start_new_session=True, pass_fds=[os.open('/dev/null', 0), os.dup(2)]",
        "stdin=subprocess.PIPE, close_fds=False",
    ],
    ids=["", "elsewhere", "descriptors", "pipe"],
)
def test_it_starts_alike(options: str, more: str, cli: Cli) -> None:
    forked, new = _both(cli, "-c", _starts(_SHOWS, options, more))
    assert forked == new
    assert forked.check().out.endswith("\n0\n")


@pytest.mark.parametrize(
    ("child", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('no')", 1),
        ("import os; os._exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
        ("raise KeyboardInterrupt", -2),
        ("print('no newline', end='')", 0),
    ],
)
def test_it_ends_alike(child: str, status: int, cli: Cli) -> None:
    forked, new = _both(cli, "-c", _starts(child))
    assert forked == new
    assert forked.check().out.endswith(f"{status}\n")


_IS_SIGNALLED = """
import os, select, signal, subprocess, sys
child = '''
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'handled\\\\n'))
signal.signal(signal.SIGINT, lambda *_: os._exit(4))
os.write(1, b'ready\\\\n')
while True: time.sleep(600)
'''
for number in ("SIGINT", "SIGTERM"):
    for new_session in (False, True):
        options = {"stdout": subprocess.PIPE, "start_new_session": new_session}
        process = subprocess.Popen([sys.executable, "-c", child], **options)
        print(process.stdout.readline())
        process.send_signal(signal.SIGUSR1)
        print(process.stdout.readline())
        process.send_signal(getattr(signal, number))
        print(process.wait(), process.stdout.read())
"""


def test_it_gets_the_signals_that_its_parent_sends(cli: Cli) -> None:
    forked, new = _both(cli, "-c", _IS_SIGNALLED)
    assert forked == new
    assert forked.check().out.count("handled") == 4


_IS_KILLED = """
import os, select, signal, subprocess, sys
child = f'''
import os, subprocess, sys, time
started = subprocess.Popen(["sleep", "600"])
print(os.getpid(), started.pid, {_IS_FORKED}, flush=True)
time.sleep(600)
'''
for new_session in (False, True):
    options = {"stdout": subprocess.PIPE, "start_new_session": new_session}
    process = subprocess.Popen([sys.executable, "-c", child], **options)
    own, started, is_forked = process.stdout.readline().split()
    ends = [os.pidfd_open(int(pid)) for pid in (own, started)]
    assert is_forked == b"True"
    (os.killpg if new_session else os.kill)(process.pid, signal.SIGKILL)
    print(process.wait())
    for end in ends[: 1 + new_session]:
        assert select.select([end], [], [], 60)[0]
    if not new_session:
        os.kill(int(started), signal.SIGKILL)
"""


def test_it_is_killed_with_the_process_that_stands_for_it(cli: Cli) -> None:
    done = cli.python("-c", _IS_KILLED.replace("{_IS_FORKED}", _IS_FORKED)).check()
    assert done.out == "-9\n-9\n"


_SPAWNS = f"""
import multiprocessing, os, sys
def work(queue, number):
    queue.put(number)
    sys.exit(number)
def square(number): return number * number, {_IS_FORKED}
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue, 3))
        process.start()
        print(queue.get(timeout=60), process.join(), process.exitcode)
        with context.Pool(2) as pool:
            for result, is_forked in pool.map(square, range(3)):
                print(result)
                print("forked", is_forked, file=sys.stderr)
"""


def test_multiprocessing_starts_alike(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(_SPAWNS, encoding="utf-8")
    forked, new = _both(cli, script)
    assert forked.check().out == new.check().out
    assert forked.err == "forked True\n" * 6
    assert new.err == "forked False\n" * 6


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ("-I", ""),
        ("-X dev", ""),
        ("", "env={**os.environ, 'OMP_NUM_THREADS': '2'}"),
        ("", "env={}"),
        ("", "preexec_fn=lambda: None"),
        ("", "process_group=0"),
        ("", f"user={os.geteuid()}"),
    ],
)
def test_what_differs_in_more_is_a_new_interpreter(options: str, more: str, cli: Cli) -> None:
    child = f"print({_IS_FORKED})"
    assert cli.python("-c", _starts(child, options, more)).check().out == "False\n0\n"
    assert cli.python("-c", _starts(child)).check().out == "True\n0\n"
    unforked = cli.in_new_interpreters().python("-c", _starts(child))
    assert unforked.check().out == "False\n0\n"
