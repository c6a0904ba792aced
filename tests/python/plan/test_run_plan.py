"""`memtide run --plan`: what a plan chooses is what the run does, and both are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import plans
import pytest
from harness import Cli
from memtide._daemon.inspection import LINKS
from memtide._launch.planned_run import rows
from memtide._plan_file import plan_file

# Blocks of 2 MiB of parameters, as the plan's model has them.
TRAIN = """
import json, pathlib
import torch
from memtide._torch_hooks import runtime
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(512, 512)
        self.outer = torch.nn.Linear(512, 512)
    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))
model = torch.nn.Sequential(torch.nn.Linear(512, 512), *(Block() for _ in range(4)),
                            torch.nn.Linear(512, 512))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(128, 512)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
at_work = runtime.current()
if at_work is not None:
    pathlib.Path("did.json").write_text(json.dumps(at_work.activations.as_json()))
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    return tmp_path


def run(cli: Cli, folder: Path, *options: object) -> dict[str, object]:
    """Runs by plan.json and returns the stats, with what was done to activations in "did"."""
    command = ["run", "--plan", "plan.json", "--stats", "stats.json", *options, "train.py"]
    cli.memtide(*command, cwd=folder).check()
    stats = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
    return {**stats, "did": json.loads((folder / "did.json").read_text(encoding="utf-8"))}


def write_plan(folder: Path, planned: object) -> None:
    (folder / "plan.json").write_text(plan_file.dumps(planned), encoding="utf-8")


def pools(stats: dict[str, object]) -> dict[str, int]:
    return {pool["tier"]: pool["capacity_bytes"] for pool in stats["pools"]}


def test_a_run_has_the_pools_and_the_chunks_of_its_plan(cli: Cli, train: Path) -> None:
    write_plan(train, plans.planned())
    stats = run(cli, train)
    assert stats["chunk_bytes"] == 2 * plans.MIB
    # The host pool is a whole number of chunks, and at least as large as planned.
    assert pools(stats) == {"host": 34 * plans.MIB, "ssd": 64 * plans.MIB}
    assert stats["did"]["recomputed_blocks"] == 0
    assert stats["did"]["moved_bytes"] == 0


def test_blocks_are_recomputed_and_moved_as_planned(cli: Cli, train: Path) -> None:
    plain = cli.python("train.py", cwd=train).check()
    write_plan(train, plans.planned(("recompute", "move", "recompute", "keep")))
    command = ["run", "--plan", "plan.json", "--stats", "stats.json", "train.py"]
    ours = cli.memtide(*command, cwd=train).check()
    assert ours.out == plain.out
    did = json.loads((train / "did.json").read_text(encoding="utf-8"))
    assert did["recomputed_blocks"] == 2
    assert did["moved_bytes"] > 0


def test_a_plan_for_another_number_of_blocks_leaves_activations_alone(
    cli: Cli, train: Path
) -> None:
    planned = plans.planned()
    first, middle, last = planned.model.blocks
    short = replace(planned.model, blocks=(first, replace(middle, count=3), last))
    choice = replace(planned.answer.choice, activations=("keep", *["recompute"] * 3, "keep"))
    answer = replace(planned.answer, choice=choice)
    write_plan(train, replace(planned, model=short, answer=answer))
    done = cli.memtide("run", "--plan", "plan.json", "train.py", cwd=train).check()
    assert "activations of 3 blocks, and the script has 4" in done.err


def test_the_end_of_a_run_compares_it_with_its_plan(cli: Cli, train: Path) -> None:
    write_plan(train, plans.planned())
    command = ["run", "--plan", "plan.json", "--stats", "stats.json", "train.py"]
    done = cli.memtide(*command, cwd=train).check()
    stats = json.loads((train / "stats.json").read_text(encoding="utf-8"))
    compared = stats["plan"]
    step = compared["step"]
    assert step["predicted"] == 0.5
    assert step["measured"] == stats["seconds_per_iteration"]
    speed = compared["speed at 2 x 64 tokens a step"]
    assert speed["measured"] == pytest.approx(128 / step["measured"])
    written = compared["host → ssd"]
    assert written["predicted"] == 40 * plans.MIB
    assert written["measured"] > 0
    read = compared["ssd → host"]
    assert read["predicted"] == 48 * plans.MIB
    assert read["measured"] > 0
    (line,) = [line for line in done.err.splitlines() if line.startswith("step ")]
    assert "0.5 s" in line
    assert "%" in line


def test_bytes_of_a_step_are_those_of_steps_that_repeat(tmp_path: Path) -> None:
    write_plan(tmp_path, plans.planned())
    plan = plan_file.load(tmp_path / "plan.json")

    def record(first: int, iterations: int, size_bytes: int) -> SimpleNamespace:
        moved = dict.fromkeys(LINKS, size_bytes)
        return SimpleNamespace(first_iteration=first, iterations=iterations, moved_bytes=moved)

    def measured(*records: SimpleNamespace) -> float:
        summary = SimpleNamespace(typical_seconds=lambda: 0.5, records=list(records))
        return {row.name: row.measured for row in rows(plan, summary)}["ssd → host"]

    assert measured(record(1, 3, 900), record(4, 2, 20), record(6, 2, 60)) == 20
    # Where no record begins so late, all count.
    assert measured(record(1, 5, 50)) == 10


def test_what_the_user_sets_beside_a_plan_counts(cli: Cli, train: Path) -> None:
    write_plan(train, plans.planned())
    stats = run(cli, train, "--host-pool", "48MiB", "--chunk-size", "4MiB")
    assert pools(stats)["host"] == 48 * plans.MIB
    assert stats["chunk_bytes"] == 4 * plans.MIB


def test_activations_that_stay_leave_the_rest_of_a_device_to_chunks(tmp_path: Path) -> None:
    tokens = 2 * 64
    kept_bytes = tokens * (8 + 4 * (4096 + 8192) + 4096)
    write_plan(tmp_path, plans.planned(device_pool_bytes=64 * plans.MIB))
    plan = plan_file.load(tmp_path / "plan.json")
    chunks = (64 * plans.MIB - kept_bytes) // (2 * plans.MIB)
    assert plan.device_chunk_bytes() == chunks * 2 * plans.MIB
    # A block that is recomputed still holds its input.
    recomputed = plans.planned(("recompute",) * 4, device_pool_bytes=64 * plans.MIB)
    write_plan(tmp_path, recomputed)
    assert plan_file.load(tmp_path / "plan.json").device_chunk_bytes() == 60 * plans.MIB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is no plan"),
        ("no JSON", "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_a_plan_is_refused(
    text: str | None, message: str, cli: Cli, train: Path
) -> None:
    if text is not None:
        (train / "plan.json").write_text(text, encoding="utf-8")
    done = cli.memtide("run", "--plan", "plan.json", "train.py", cwd=train)
    assert done.status != 0
    (line,) = done.err.splitlines()
    assert message in line


def test_a_plan_that_does_not_fit_is_refused(cli: Cli, train: Path) -> None:
    planned = plans.planned()
    answer = replace(
        planned.answer, fits=False, limit="host memory is short", step_s=None, choice=None
    )
    write_plan(train, replace(planned, answer=answer))
    done = cli.memtide("run", "--plan", "plan.json", "train.py", cwd=train)
    assert done.status == 1
    assert "does not fit its machine: host memory is short" in done.err


def test_a_budget_beside_a_plan_is_refused(cli: Cli, train: Path) -> None:
    write_plan(train, plans.planned())
    done = cli.memtide("run", "--plan", "plan.json", "--host-memory", "4GiB", "train.py", cwd=train)
    assert done.status == 2
    assert "leave out --host-memory" in done.err
