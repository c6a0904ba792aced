"""Ranks that exchange parts of their gradients keep the same bits, and learn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import memtide.exchange
import pytest
import torch
from harness import REPOSITORY, SCRIPTS, Cli
from memtide.errors import InvalidArgument

_RANKS = 3


def _train(cli: Cli, folder: Path, kind: str, **options: float) -> tuple[list[dict[str, Any]], str]:
    """The results of all ranks, and what they say."""
    result = folder / kind
    done = cli.python(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={_RANKS}",
        SCRIPTS / "exchanging.py",
        kind,
        json.dumps(options),
        RESULT=result,
    ).check()
    files = [result.with_name(f"{kind}{rank}") for rank in range(_RANKS)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files], done.err


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [("threshold", {"share": 0.05}, 0.3), ("low_rank", {"rank": 2}, 0.3)],
)
def test_ranks_keep_the_same_weights_and_learn(
    kind: str, options: dict[str, float], most: float, cli: Cli, tmp_path: Path
) -> None:
    results, stderr = _train(cli, tmp_path, kind, exact_steps=2, **options)
    assert len({result["digests"][0] for result in results}) == 1
    losses = [float.fromhex(loss) for loss in results[0]["losses"]]
    assert losses[-1] < 0.7 * losses[0]
    line = re.search(rf"memtide\.exchange\.{kind}: .* in 40 steps, ([\d.]+)% of", stderr)
    assert line is not None
    assert float(line.group(1)) / 100 < most
    assert stderr.count("memtide.exchange") == 1


def test_an_exact_exchange_has_the_bits_of_plain_ddp(cli: Cli, tmp_path: Path) -> None:
    exact, stderr = _train(cli, tmp_path, "exact")
    plain, _ = _train(cli, tmp_path, "plain")
    for name in ("losses", "digests"):
        assert [result[name] for result in exact] == [result[name] for result in plain]
    assert "100.0% of" in stderr


def test_the_example_of_the_documents_runs(cli: Cli, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "exchange.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "script.py"
    begin = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    end = "model(torch.ones(2, 512)).sum().backward()\ndist.destroy_process_group()\n"
    script.write_text(begin + code + end, encoding="utf-8")
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = cli.python(*launch, "--nproc-per-node=1", script).check()
    assert "memtide.exchange.threshold: 0.0 MiB sent by each rank in 1 steps" in done.err


def test_a_model_without_ddp_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="takes a DistributedDataParallel, not a Linear"):
        memtide.exchange.threshold(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("threshold", {"share": 0}, "share is 0; it must be above 0, and 1 at most"),
        ("threshold", {"share": 1.5}, "share is 1.5"),
        ("threshold", {"renew_every": 0}, "renew_every is 0; it must be 1 or more"),
        ("low_rank", {"rank": 0}, "rank is 0; it must be 1 or more"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        getattr(memtide.exchange, name)(None, **options)
