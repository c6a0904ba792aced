"""Trains in processes that it starts, one after another, each in a way that its arguments name.

Not a test: tests run it as a user's script. Its first argument is the script that trains; a way's
result is in the file $RESULT followed by the way's number among the arguments.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def train(script: str) -> None:
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def in_subprocess(script: str) -> None:
    subprocess.run([sys.executable, "-u", script], check=True)


def in_its_subprocess(script: str) -> None:
    start = f"import subprocess, sys; subprocess.run([sys.executable, {script!r}], check=True)"
    subprocess.run([sys.executable, "-c", start], check=True)


def with_variables(script: str) -> None:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "PYTHONUNBUFFERED": "1"}
    subprocess.run([sys.executable, script], env={**os.environ, **rank}, check=True)


def isolated(script: str) -> None:
    # In an environment with the wheel, torch finds memtide without PYTHONPATH.
    path = [str(Path(script).parent), *sys.path]
    start = f"import sys, runpy; sys.path += {path!r}; runpy.run_path({script!r})"
    subprocess.run([sys.executable, "-I", "-c", start], check=True)


def by_exec(script: str) -> None:
    os.execv(sys.executable, [sys.executable, script])


def by_fork(script: str) -> None:
    child = os.fork()
    if child == 0:
        train(script)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0


def in_process(method: str) -> Callable[[str], None]:
    def start(script: str) -> None:
        process = multiprocessing.get_context(method).Process(target=train, args=(script,))
        process.start()
        process.join()
        assert process.exitcode == 0

    return start


def in_process_of_torch(script: str) -> None:
    import torch.multiprocessing

    process = torch.multiprocessing.get_context("spawn").Process(target=train, args=(script,))
    process.start()
    process.join()
    assert process.exitcode == 0


def in_forked_ranks(script: str) -> None:
    import torch.multiprocessing

    torch.multiprocessing.start_processes(train_rank, (script,), start_method="fork")


def train_rank(_rank: int, script: str) -> None:
    train(script)


WAYS: dict[str, Callable[[str], None]] = {
    "subprocess": in_subprocess,
    "subprocess of a subprocess": in_its_subprocess,
    "subprocess with variables": with_variables,
    "subprocess -I": isolated,
    "exec": by_exec,
    "os.fork": by_fork,
    "fork": in_process("fork"),
    "forkserver": in_process("forkserver"),
    "spawn": in_process("spawn"),
    "torch.multiprocessing.Process": in_process_of_torch,
    "start_processes fork": in_forked_ranks,
}

if __name__ == "__main__":
    result = os.environ["RESULT"]
    for number, way in enumerate(sys.argv[2:]):
        os.environ["RESULT"] = f"{result}{number}"
        WAYS[way](sys.argv[1])
