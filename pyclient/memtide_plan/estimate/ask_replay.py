"""Asks memtide-replay, which plays planned iterations with the daemon's engine (planning.proto)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from memtide._capi import locate
from memtide.errors import InvalidArgument, MemtideError

# A question takes a second at most; a sweep has a thousand, of which each takes a tenth.
_TIMEOUT_S = 600.0


class PlannerFailed(MemtideError):
    """memtide-replay gave no answer; the message says why."""


def ask(questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The PlanReply of each PlanQuestion, both as protobuf's JSON. PlannerFailed; InvalidArgument:
    a value of a question cannot be."""
    if not questions:
        return []
    try:
        done = subprocess.run(
            [locate.find_replay(), "--plan", "-"],
            input=json.dumps({"questions": list(questions)}).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlannerFailed(f"the planner cannot run: {error}") from error
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise PlannerFailed(message or f"memtide-replay ended with status {done.returncode}")
    replies = json.loads(done.stdout)["replies"]
    assert isinstance(replies, list) and len(replies) == len(questions)
    for reply in replies:
        if reply.get("error"):
            raise InvalidArgument(f"the planner cannot answer: {reply['error']}")
    return replies
