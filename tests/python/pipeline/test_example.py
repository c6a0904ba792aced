"""examples/train_pipeline.py learns the same in ordinary memory and under memtide, and the
functions of docs/pipelines.md train."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli

_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1"]
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_MODEL = [
    "--steps=4",
    "--layers=4",
    "--width=128",
    "--batch=8",
    "--micro-batches=4",
    "--context=32",
]


def _losses(out: str) -> list[str]:
    return re.findall(r"loss (\S+)", out)


@pytest.mark.parametrize("pipelines", [1, 2])
def test_the_example_learns_the_same_under_memtide(
    pipelines: int, cli: Cli, tmp_path: Path
) -> None:
    stages = 2
    run = [
        *_TORCHRUN,
        f"--nproc-per-node={stages * pipelines}",
        REPOSITORY / "examples" / "train_pipeline.py",
        *_MODEL,
        f"--width-of-pipelines={pipelines}",
    ]
    plain = cli.python("-m", "torch.distributed.run", *run).check()
    stats = tmp_path / "stats"
    pools = ["--host-pool=96MiB", "--ssd-pool=512MiB", f"--ssd-dir={tmp_path}"]
    flags = [*pools, "--chunk-size=2MiB", f"--stats={stats}"]
    ours = cli.memtide("run", *flags, "torchrun", *run).check()
    losses = _losses(plain.out)
    assert len(losses) == 4
    assert float(losses[-1]) < float(losses[0])
    assert _losses(ours.out) == losses
    # Both versions of the four blocks are in chunks, 12 width^2 parameters each, and once for both
    # pipelines.
    host_bytes = json.loads(stats.read_text(encoding="utf-8"))["kinds"]["parameter"]["host_bytes"]
    assert 2 * 4 * 12 * 128**2 * 4 <= host_bytes < 2 * 2 * 4 * 12 * 128**2 * 4


_PLANNED = """
import dataclasses
import sys

import memtide.pipeline

sys.path.insert(0, EXAMPLES)
import train_pipeline

measured_layers = memtide.pipeline.measured_layers


def measured(blocks, inputs):
    first, *others = measured_layers(blocks, inputs)
    first = dataclasses.replace(first, forward=memtide.pipeline.Seconds(1.0))
    return [dataclasses.replace(each, activation_bytes=2**30) for each in (first, *others)]


class Schedule(memtide.pipeline.Schedule2BW):
    def __init__(self, *arguments, recompute, **options):
        super().__init__(*arguments, recompute=recompute, **options)
        print(f"recompute: {recompute}", flush=True)


class Stage(train_pipeline.Stage):
    def __init__(self, gpt, first, end):
        super().__init__(gpt, first, end)
        print(f"blocks {first} to {end}", flush=True)


memtide.pipeline.measured_layers = measured
memtide.pipeline.Schedule2BW = Schedule
train_pipeline.Stage = Stage
train_pipeline.main()
"""


@pytest.mark.parametrize(
    ("memory", "shape", "recomputed"),
    [
        # The first block is slow.
        ("100GiB", "(1+3 layers), 4 micro-batches of 2:", False),
        # Two micro-batches of two blocks do not fit, nor does one of three.
        ("5GiB", "(2+2 layers), 4 micro-batches of 2, recomputed:", True),
    ],
)
def test_a_plan_is_applied_and_the_losses_stay(
    memory: str, shape: str, recomputed: bool, cli: Cli, tmp_path: Path
) -> None:
    examples = REPOSITORY / "examples"
    script = tmp_path / "script.py"
    script.write_text(_PLANNED.replace("EXAMPLES", repr(str(examples))), encoding="utf-8")
    run = ["-m", "torch.distributed.run", *_TORCHRUN, "--nproc-per-node=2"]
    equal = cli.python(*run, examples / "train_pipeline.py", *_MODEL).check()
    planned = cli.python(*run, script, *_MODEL, "--plan", f"--memory={memory}").check()
    assert f"plan: 2bw, width 1 x depth 2 {shape}" in planned.out
    first = 2 if recomputed else 1
    # Two ranks write to one pipe, and the end of a line may come behind that of the other's.
    assert f"blocks {first} to 4" in planned.out
    assert planned.out.count(f"recompute: {recomputed}") == 2
    assert _losses(planned.out) == _losses(equal.out)


def test_the_functions_of_the_documents_train(cli: Cli, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "pipelines.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(page)
    script = tmp_path / "script.py"
    script.write_text(
        "\n\n".join([blocks[0], blocks[2], blocks[3]]) + """

dist.init_process_group("gloo")
torch.manual_seed(0)
batch = torch.randn(16, 8), torch.randn(16, 8)
train(torch.nn.Linear(8, 8), torch.nn.functional.mse_loss, [batch] * 4)

blocks = torch.nn.Linear(8, 8)
stage = PipelineStage(blocks, dist.get_rank(), 2, torch.device("cpu"))
optimizer = torch.optim.AdamW(blocks.parameters())
skip_what_is_not_finite(optimizer)
schedule = thin_schedule(stage, optimizer, torch.nn.functional.mse_loss)
for loss in schedule.run([batch] * 4):
    if loss is not None:
        print(loss.item())
dist.destroy_process_group()
""",
        encoding="utf-8",
    )
    done = cli.python(
        "-m", "torch.distributed.run", *_TORCHRUN, "--nproc-per-node=2", script
    ).check()
    losses = [float(line) for line in done.out.split()]
    assert len(losses) == 8
    assert losses[3] < losses[0]
    assert losses[7] < losses[4]
    # 2 of the 16 elements of a message travel: 16 bytes of 64.
    assert "sent by stage 0 of 2 in 4 steps, 25.0% of whole tensors'" in done.err


def test_the_plan_of_the_documents_is_printed(cli: Cli, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "pipelines.md").read_text(encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(_BLOCK.findall(page)[1], encoding="utf-8")
    assert re.search(r"width \d+ x depth \d+ .* s a batch", cli.python(script).check().out)
