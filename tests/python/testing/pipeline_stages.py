"""Runs scripts/pipelined.py, by a process for each stage or by one for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from harness import SCRIPTS, Cli

STAGES = 4


class Trained(NamedTuple):
    """The results of each rank, or stage if there is one process, and the output of all."""

    results: list[dict[str, Any]]
    out: str
    err: str


def train(cli: Cli, folder: Path, ranks: int, *arguments: str) -> Trained:
    """Trains with `ranks` processes."""
    result = folder / f"of{ranks}-"
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={ranks}",
    ]
    done = cli.python(
        *(launch if ranks > 1 else []), SCRIPTS / "pipelined.py", *arguments, RESULT=result
    ).check()
    files = (Path(f"{result}{number}") for number in range(max(ranks, STAGES)))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return Trained(results, done.out, done.err)
