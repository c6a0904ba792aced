"""Activations that move, or are recomputed, by choice, in scripts of several processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import SCRIPTS, Cli


def train(cli: Cli, result: Path, **environment: str) -> list[Any]:
    """The report of each rank."""
    cli.python(SCRIPTS / "chosen_ranks.py", RESULT=result, **environment).check()
    return [json.loads(Path(f"{result}.{rank}").read_text(encoding="utf-8")) for rank in range(2)]


def test_ranks_with_unused_parameters_train_as_plain(cli: Cli, tmp_path: Path) -> None:
    choices = {"blocks.[01]": "move", "blocks.*": "recompute"}
    plain = train(cli, tmp_path / "plain")
    ours = train(cli, tmp_path / "ours", CHOICES=json.dumps(choices))
    assert [rank["result"] for rank in ours] == [rank["result"] for rank in plain]
    for rank in ours:
        assert rank["activations"]["moved_bytes"] > 6 * 2 * 64 * 512 * 4  # GELU's in each step.
        assert rank["activations"]["recomputed_blocks"] == 2
