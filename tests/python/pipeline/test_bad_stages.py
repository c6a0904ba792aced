"""Stages with results that are not finite, and stages that raise."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from pipeline_stages import STAGES, train

_ARGUMENTS = ("4", "4", "adamw")


@pytest.mark.parametrize(
    ("spoil", "skip", "lines"),
    [
        (
            "1:2:output",
            [],
            [
                "0 of 4, in batch 2, infinite or NaN: the gradient of 0.weight, as is what stage 1 "
                "has sent",
                "1 of 4, in batch 2, infinite or NaN: the output, the gradient of the input, the "
                "gradient of module.0.weight, and it begins here",
                "2 of 4, in batch 2, infinite or NaN: the output, the gradient of the input, the "
                "gradient of 0.weight, as is what stage 1 has sent",
                "3 of 4, in batch 2, infinite or NaN: the loss, the gradient of the input, the "
                "gradient of 0.weight, as is what stage 2 has sent",
            ],
        ),
        (
            "2:1:gradient",
            ["--skip"],
            [
                "0 of 4, in batch 1, infinite or NaN: the gradient of 0.weight, as is what stage 1 "
                "has sent",
                "1 of 4, in batch 1, infinite or NaN: the gradient of the input, the gradient of "
                "0.weight, as is what stage 2 has sent",
                "2 of 4, in batch 1, infinite or NaN: the gradient of the input, the gradient of "
                "module.0.weight, and it begins here",
            ],
        ),
    ],
)
def test_training_goes_on_as_in_one_process_and_the_stage_is_named(
    spoil: str, skip: list[str], lines: list[str], cli: Cli, tmp_path: Path
) -> None:
    arguments = (*_ARGUMENTS, f"--spoil={spoil}", *skip)
    pipeline = train(cli, tmp_path, STAGES, *arguments)
    assert pipeline.results == train(cli, tmp_path, 1, *arguments).results
    before = "memtide.pipeline: in stage "
    found = sorted(line for line in pipeline.err.splitlines() if line.startswith(before))
    assert found == [f"{before}{line} (said once)" for line in lines]


def test_stages_end_when_one_raises(cli: Cli, tmp_path: Path) -> None:
    # No launcher ends the others.
    meeting = {"MEETING": f"file://{tmp_path / 'meeting'}", "WORLD_SIZE": STAGES}
    script = [SCRIPTS / "pipelined.py", *_ARGUMENTS, "--spoil=1:2:error"]
    stages = [
        cli.start_python(*script, **meeting, RANK=n, RESULT=tmp_path / "result")
        for n in range(STAGES)
    ]
    errors = [stage.communicate(timeout=300)[1] for stage in stages]
    assert all(stage.returncode == 1 for stage in stages)
    assert "ArithmeticError: the stage has no result" in errors[1]
    for number, beside in ((0, "1"), (2, "1 or 3"), (3, "2")):
        assert f"stage {number} of 4 gets no answer in batch" in errors[number]
        assert f"a stage beside it ({beside}) has ended" in errors[number]


def test_torchrun_shows_the_error_of_a_stage(cli: Cli, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    ended = cli.python(
        *launch,
        f"--nproc-per-node={STAGES}",
        SCRIPTS / "pipelined.py",
        *_ARGUMENTS,
        "--spoil=2:1:error",
        RESULT=tmp_path / "result",
    )
    assert ended.status != 0
    assert "ArithmeticError: the stage has no result" in ended.err
    assert "Root Cause" in ended.err
