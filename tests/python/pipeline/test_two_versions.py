"""Pipelines with two versions have the bits of one process that applies the same gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Cli
from memtide.errors import InvalidArgument
from memtide.pipeline import Schedule2BW
from pipeline_stages import STAGES, train


def _results(cli: Cli, folder: Path, ranks: int, *arguments: str) -> list[dict[str, Any]]:
    return train(cli, folder, ranks, *arguments).results


@pytest.mark.parametrize(
    ("micro_batches", "batches", "optimizer"),
    [("4", "1", "adamw"), ("4", "6", "adamw"), ("7", "5", "sgd")],
)
def test_a_pipeline_has_the_bits_of_delayed_gradients(
    micro_batches: str, batches: str, optimizer: str, cli: Cli, tmp_path: Path
) -> None:
    arguments = (micro_batches, batches, optimizer)
    assert _results(cli, tmp_path, STAGES, *arguments) == _results(cli, tmp_path, 1, *arguments)


@pytest.mark.parametrize("by", ["--recomputed", "--recompute"])
def test_what_is_computed_again_reads_the_version_of_its_batch(
    by: str, cli: Cli, tmp_path: Path
) -> None:
    arguments = ("4", "4", "adamw", by)
    assert _results(cli, tmp_path, STAGES, *arguments) == _results(cli, tmp_path, 1, *arguments)


def test_pipelines_beside_each_other_average_their_gradients(cli: Cli, tmp_path: Path) -> None:
    arguments = ("4", "3", "adamw")
    alone = _results(cli, tmp_path, 1, *arguments)
    # Both get the same batches, so that the mean of two gradients is one of them.
    assert _results(cli, tmp_path, 2 * STAGES, *arguments) == alone + alone


class _Stage:
    num_stages = 4


def test_fewer_micro_batches_than_stages_are_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InvalidArgument, match="3 micro-batches are too few for 4 stages"):
        Schedule2BW(_Stage(), optimizer, 3, torch.nn.functional.mse_loss)  # type: ignore[arg-type]
