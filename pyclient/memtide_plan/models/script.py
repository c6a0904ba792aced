"""A model from the script that trains it.

The script runs in a process of its own (memtide_plan.seen_model), with its parameters on torch's
meta device, until its model's first forward pass; it does not train, and what it would write goes
nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import States
from memtide.errors import InvalidArgument

from memtide_plan.models.described import DEFAULTS, Described, Options

_CHILD = "memtide_plan.seen_model"
_GRACE_S = 20.0  # Until the process has answered, when the script's time is over.


def from_script(path: Path, options: Options = DEFAULTS) -> Described:
    """The model of a script. InvalidArgument: it cannot be seen without running the script."""
    with tempfile.TemporaryDirectory(prefix="memtide-plan-") as scratch:
        answer = _ask(path, options, Path(scratch))
    if "error" in answer:
        raise InvalidArgument(
            f"the model of '{path}' cannot be seen without running it: {answer['error']}"
        )
    return _described(answer)


def _ask(path: Path, options: Options, scratch: Path) -> Mapping[str, Any]:
    answer = scratch / "answer.json"
    command = [sys.executable, "-P", "-B", "-m", _CHILD, str(answer), str(options.timeout_s)]
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }
    process = subprocess.Popen(
        [*command, str(path), *options.arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        process.wait(options.timeout_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        return {"error": f"it has shown none in {options.timeout_s:.0f} s"}
    finally:  # With the processes that it has started, such as those that load data.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not answer.exists():
        return {"error": "its process ended before its optimizer was made"}
    document: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return document


def _described(answer: Mapping[str, Any]) -> Described:
    """Described from its JSON: dataclasses as mappings, tuples as lists."""
    model = answer["model"]
    blocks = tuple(Block(**block) for block in model["blocks"])
    rest = {name: value for name, value in answer.items() if name not in ("model", "states")}
    return Described(
        model=Model(**{**model, "blocks": blocks}),
        states=States(**answer["states"]),
        **{**rest, "notes": tuple(rest["notes"])},
    )
