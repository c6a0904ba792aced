"""A program in a forked process does what it does in a new interpreter."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from forked_process import ForkedProcess
from harness import Cli, Outcome

_START = """
import os, sys
print(__name__, sys.argv, sys.flags.safe_path, sys.path, os.getcwd(), os.environ["COLUMNS"])
print(sorted(vars(sys.modules["__main__"])), globals().get("__file__"))
print([name for name in ("torch", "numpy", "multiprocessing") if name in sys.modules])
print(os.umask(0), os.nice(0), os.getsid(0), os.getpgid(0), os.listdir("/proc/self/fd"))
"""
_IMPORTS = """
import importlib.util, sys
print(importlib.util.find_spec("torch").origin, "torch" in sys.modules)
import torch
known = set(sys.modules)
print(sorted(name for name in known if name.split(".")[0] == "torch"), torch.__spec__)
torch.manual_seed(1)
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters()).step()
print("torch._dynamo" in known, "torch._dynamo" in sys.modules, torch.fx.symbolic_trace, model.bias)
"""


def _both(cli: Cli, *command: object, **more: object) -> tuple[Outcome, Outcome]:
    with cli.start_python(*command, **more) as process:
        assert isinstance(process, ForkedProcess)
        out, err = process.communicate()
    return Outcome(process.returncode, out, err), cli.in_new_interpreters().python(*command, **more)


@pytest.mark.parametrize("options", [[], ["-P"]], ids=["", "safe path"])
@pytest.mark.parametrize("kind", ["script", "module", "code"])
def test_a_program_starts_alike(kind: str, options: list[str], cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text(_START, encoding="utf-8")
    program = {"script": [script], "module": ["-m", "started"], "code": ["-c", _START]}[kind]
    path = os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))
    forked, new = _both(cli, *options, *program, "a", "-b", cwd=tmp_path, PYTHONPATH=path)
    assert forked == new
    assert forked.status == 0


def test_torch_is_imported_when_the_program_imports_it(cli: Cli) -> None:
    forked, new = _both(cli, "-c", _IMPORTS)
    addresses = r" at 0x[0-9a-f]+"
    assert forked.check().err == new.check().err

    assert re.sub(addresses, "", forked.out) == re.sub(addresses, "", new.out)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('no')",
        "def fails(): raise ValueError('no')\nfails()",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os._exit(3)",
        "import atexit; atexit.register(print, 'end'); print('begin')",
        "import threading; threading.Timer(0.01, print, ['end']).start()",
        "class End:\n def __del__(self): print('end')\nkept = End()",
        "import sys; sys.excepthook = lambda *error: print(error[1]); raise ValueError('no')",
        "x =",
    ],
)
def test_a_program_ends_alike(program: str, cli: Cli) -> None:
    forked, new = _both(cli, "-c", program)
    assert forked == new


def test_it_is_a_process_as_any_other(cli: Cli) -> None:
    process = cli.start_python("-c", "import time; print('there', flush=True); time.sleep(600)")
    assert isinstance(process, ForkedProcess)
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.communicate() == ("", "")
    assert process.wait() == process.poll() == -signal.SIGTERM


@pytest.mark.parametrize(
    "more",
    [{"OMP_NUM_THREADS": 2}, {"PYTHONHASHSEED": 1}, {"LD_PRELOAD": ""}],
    ids=lambda x: next(iter(x)),
)
def test_what_is_read_at_a_start_is_for_a_new_interpreter(
    more: dict[str, object], cli: Cli
) -> None:
    process = cli.start_python("-c", "", **more)
    assert not isinstance(process, ForkedProcess)
    process.communicate()


def test_what_torch_sets_in_the_process_of_the_tests_changes_nothing(cli: Cli) -> None:
    importlib.import_module("torch._dynamo")
    process = cli.start_python("-c", "")
    assert isinstance(process, ForkedProcess)
    process.communicate()
