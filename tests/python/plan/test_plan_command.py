"""`memtide plan`: what is searched, what an answer says, and what the command refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import documented_plans
import plans
import pytest
from harness import REPOSITORY, Cli
from memtide._plan_file import plan_file
from memtide._plan_file.answer import Answer
from memtide._plan_file.question import Question
from memtide.errors import InvalidArgument, UsageError
from memtide_plan.buy import buy
from memtide_plan.command import report as plan_report
from memtide_plan.fastest import ask, ask_all
from memtide_plan.sweep import Point, least_for_half, range_of, sweep

LLAMA = REPOSITORY / "docs" / "plan" / "llama-3-8b.json"
GPU = ("--gpu", "rtx4090", "--host-memory", "192GiB")


def question(**changes: object) -> Question:
    planned = plans.planned()
    wanted = Question(model=planned.model, machine=planned.machine, training=planned.training)
    return replace(wanted, **changes)


# Files of plans.


def test_the_keys_of_an_answer_in_json_stay() -> None:
    document = plan_file.as_json(plans.planned())
    assert set(document) == {"format", "question", "answer"}
    assert set(document["question"]) == {"model", "training", "machine"}
    assert set(document["answer"]) >= {
        "fits",
        "limit",
        "least_device_bytes",
        "least_host_bytes",
        "step_s",
        "low_s",
        "high_s",
        "tokens_per_s",
        "busy",
        "choice",
        "moved_bytes",
        "drive_years",
    }


# The printed answer.


def test_an_answer_says_what_it_is_asked_for() -> None:
    planned = plans.planned(("keep", "move", "recompute", "keep"))
    text = "\n".join(plan_report.answer_lines(planned))
    for part in (
        "small (2.62 million parameters) on emulated, 1.00 GiB",
        "fits. host memory",
        "step: 500 ms (400 ms to 625 ms), 256 tokens/s, 2 x 64 tokens",
        "chunks of 2.00 MiB, micro-batch 2, accumulation 1, optimizer on the host",
        "pools: host 33.0 MiB, SSD 64.0 MiB",
        "activations of 6 blocks: 4 stay, 1 move, 1 are recomputed",
        "the least: device memory 16.0 MiB, or host memory 64.0 MiB",
        "drive: 40.0 MiB written in a step; --ssd-life says",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("device_pool_bytes", "where"), [(0, "in host memory"), (64 * plans.MIB, "on the device")]
)
def test_an_answer_says_where_states_stay(device_pool_bytes: int, where: str) -> None:
    planned = plans.planned(device_pool_bytes=device_pool_bytes)
    assert planned.answer.choice is not None
    choice = replace(planned.answer.choice, resident_bytes=8 * plans.MIB)
    planned = replace(planned, answer=replace(planned.answer, choice=choice))
    text = "\n".join(plan_report.answer_lines(planned))
    assert f"; 8.00 MiB of states stay {where}" in text


def test_an_answer_that_does_not_fit_says_the_least() -> None:
    planned = plans.planned()
    answer = replace(planned.answer, fits=False, limit="It does not fit: host.", step_s=None)
    lines = list(plan_report.answer_lines(replace(planned, answer=answer)))
    assert lines[1] == "It does not fit: host."
    assert lines[2].startswith("the least: device memory 16.0 MiB")
    assert len(lines) == 3


def test_a_bar_is_as_long_as_its_share_of_the_step() -> None:
    busy = plans.planned().answer.busy
    lines = list(plan_report.bar_lines(busy, 0.5))
    widths = {line[:19].strip(): line.count("█") for line in lines}
    assert widths["compute"] == 24  # 0.3 of 0.5 s, of a width of 40.
    assert widths["recomputation"] == 4
    assert widths["optimizer"] == widths["the device waits"] == 16
    assert "between devices" not in widths


def test_the_life_of_a_drive_is_in_years() -> None:
    planned = plans.planned()
    answer = replace(planned.answer, drive_years=2.345)
    text = "\n".join(plan_report.answer_lines(replace(planned, answer=answer)))
    assert "it lasts 2.35 years of training" in text
    brief = replace(planned.answer, drive_years=0.02)
    text = "\n".join(plan_report.answer_lines(replace(planned, answer=brief)))
    assert "it lasts 0.02 years (7.3 days) of training" in text


# Searches.


def test_an_open_batch_is_as_fast_as_any_of_the_powers_of_two() -> None:
    wanted = question(sequence=64)
    found = ask(wanted)
    speeds = {
        batch: ask_all(replace(wanted, batch=batch), [wanted.machine])[0].answer.tokens_per_s or 0
        for batch in (1, 2, 4, 8)
    }
    assert found.answer.fits
    assert (found.answer.tokens_per_s or 0) >= 0.9 * max(speeds.values())


def test_a_fixed_batch_and_sequence_are_asked_as_they_are() -> None:
    training = ask(question(batch=3, sequence=80)).training
    assert (training.batch, training.sequence) == (3, 80)


def test_a_sequence_that_does_not_fit_is_halved() -> None:
    wanted = question(batch=1)
    model = wanted.model
    wide = replace(model.blocks[1], rest_bytes_per_token=1e6, recomputable=False)
    wanted = replace(
        wanted,
        model=replace(model, blocks=(model.blocks[0], wide, model.blocks[2])),
        machine=replace(wanted.machine, drive=None),
    )
    planned = ask(wanted)
    assert planned.answer.fits
    assert 128 <= planned.training.sequence < 4096


def test_a_sequence_that_a_model_has_no_positions_for_is_refused() -> None:
    wanted = question(batch=1, sequence=4096)
    with pytest.raises(InvalidArgument, match="sequences of up to 512 tokens, not 4096"):
        ask(replace(wanted, model=replace(wanted.model, longest_sequence=512)))


def test_the_cheapest_machine_that_is_fast_enough_comes_first() -> None:
    base = plans.machine()
    fast = replace(base, device=replace(base.device, flop_per_s={"float32": 1e14}))
    machines = [
        replace(base, name="slow", price=10.0),
        replace(fast, name="dear", price=300.0),
        replace(fast, name="cheap", price=200.0),
        replace(fast, name="no price"),
    ]
    wanted = question(batch=64, sequence=64)
    slow, *_ = (each.answer.tokens_per_s for each in ask_all(wanted, machines))
    bought = buy(wanted, 1.01 * slow, machines)
    assert [each.machine.name for each in bought.reaching] == ["cheap", "dear"]
    assert bought.fastest is not None
    unreached = buy(wanted, 1e15, machines)
    (line,) = plan_report.bought_lines(unreached, 1e15)
    assert "no machine of the catalogue reaches" in line
    with pytest.raises(InvalidArgument, match="no machine of the catalogue has a price"):
        buy(wanted, 1.0, machines[3:])


def test_a_sweep_goes_from_one_budget_to_another_by_equal_factors() -> None:
    budgets = range_of("host-memory=16GiB..256GiB:5").budgets
    assert budgets == (16 << 30, 32 << 30, 64 << 30, 128 << 30, 256 << 30)
    assert len(range_of("ssd=1GB/s..14GB/s").budgets) == 9


@pytest.mark.parametrize(
    "text",
    [
        "host=1GiB..2GiB",
        "host-memory",
        "host-memory=16GiB",
        "host-memory=2GiB..1GiB",
        "host-memory=1..2",
        "ssd=1GB..2GB",
        "host-memory=1GiB..2GiB:1",
        "host-memory=1GiB..2GiB:",
        "host-memory=1GiB..2GiB:x",
    ],
)
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--sweep"):
        range_of(text)


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("host-memory=512MiB..2GiB:3", lambda m: m.host_memory_bytes),
        ("device-memory=64MiB..1GiB:3", lambda m: m.device.memory_bytes),
        ("ssd=1GB/s..4GB/s:3", lambda m: m.drive.write_bytes_per_s),
    ],
)
def test_each_budget_of_a_sweep_is_asked(text: str, of: object) -> None:
    budgets = range_of(text)
    points = sweep(question(batch=2, sequence=64), budgets)
    assert [of(point.planned.machine) for point in points] == list(budgets.budgets)


def test_half_of_the_speed_is_looked_for_from_the_smallest_budget_on() -> None:
    planned = plans.planned()

    def point(budget: int, speed: float | None) -> Point:
        answer: Answer = replace(planned.answer, tokens_per_s=speed, fits=speed is not None)
        return Point(budget=budget, planned=replace(planned, answer=answer))

    points = [point(1, None), point(2, 40.0), point(3, 50.0), point(4, 100.0)]
    half = least_for_half(points)
    assert half is not None
    assert half.budget == 3
    assert least_for_half(points[:1]) is None


# The command.


def test_the_command_prints_json_and_writes_the_same(cli: Cli, tmp_path: Path) -> None:
    command = ["plan", "--model", LLAMA, *GPU, "--batch", 4, "--sequence", 1024, "--json"]
    done = cli.memtide(*command, "--output", "plan.json", cwd=tmp_path).check()
    assert json.loads(done.out) == json.loads((tmp_path / "plan.json").read_text("utf-8"))
    plan = plan_file.load(tmp_path / "plan.json")
    assert (plan.training.batch, plan.training.sequence) == (4, 1024)


def test_a_budget_that_is_impossible_has_a_status_of_its_own(cli: Cli, tmp_path: Path) -> None:
    command = ["plan", "--model", LLAMA, "--gpu", "rtx4090", "--host-memory", "4GiB"]
    done = cli.memtide(*command, "--batch", 1, "--sequence", 512, cwd=tmp_path)
    assert done.status == 3
    assert "does not fit" in done.out
    assert "the least: " in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one model is asked for"),
        (("--model", LLAMA, "--trace", "run.trace.gz"), "one model is asked for"),
        (("--model", LLAMA, "--", "--lr", "1"), "what stands after --"),
        (("--model", LLAMA, "--picture", "a.png"), "--picture draws a sweep"),
        (("--model", LLAMA, "--buy", "9tokens/s", "--sweep", "x"), "one at a time"),
        (("--model", "no.json"), "no.json"),
        (("no.py",), "no.py"),
    ],
)
def test_bad_questions_are_refused_in_a_line(
    arguments: tuple[object, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    machine = () if "--buy" in arguments else GPU
    done = cli.memtide("plan", *machine, *arguments, cwd=tmp_path)
    assert done.status in (1, 2)
    (line,) = done.err.splitlines()
    assert line.startswith("memtide: ")
    assert message in line


def test_a_sweep_is_drawn(cli: Cli, tmp_path: Path) -> None:
    command = ["plan", "--model", LLAMA, *GPU, "--batch", 4, "--sequence", 1024]
    swept = ["--sweep", "host-memory=32GiB..192GiB:3", "--picture", "sweep.png"]
    done = cli.memtide(*command, *swept, cwd=tmp_path).check()
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert len(done.out.splitlines()) == 5


@pytest.mark.parametrize("path", documented_plans.PAGES, ids=lambda path: path.stem)
def test_the_pages_commands_print_what_they_say(cli: Cli, path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert documented_plans.commands(page)
    assert documented_plans.rewritten(page, cli) == page
