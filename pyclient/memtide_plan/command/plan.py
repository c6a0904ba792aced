"""`memtide plan`: its options, and what they ask for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memtide._trace.files import RAW_SUFFIX
from memtide._util.output_file import check_writable
from memtide._util.parser import Parser
from memtide.errors import UsageError

from memtide_plan.ask.states import names as optimizer_names
from memtide_plan.ask.words import THIS, MachineWords

if TYPE_CHECKING:
    from memtide._plan_file.machine import Machine
    from memtide._plan_file.question import Question

_EXIT_DOES_NOT_FIT = 3
_COMPUTE_TYPES = ("bfloat16", "float32", "tf32")
# The options that describe a machine: the fields of MachineWords.
_MACHINE_OPTIONS = tuple(MachineWords.__dataclass_fields__)
_Action = Callable[[], int]


def add_arguments(plan: Parser) -> None:
    """Adds the options of `memtide plan` to its parser."""
    plan.usage = "memtide plan [options] SCRIPT|--model FILE|--trace FILE|--check [-- SCRIPT ARGS]"
    plan.description = (
        "Says whether a model trains on a machine, how fast, what limits it, and what to choose. "
        "The machine need not be there. Sizes: 64GiB; rates: 3.5GB/s. The exit status is "
        f"{_EXIT_DOES_NOT_FIT} where the model does not fit."
    )
    plan.passes_on = "arguments"
    plan.add_argument(
        "script",
        nargs="?",
        metavar="SCRIPT",
        help="a script that trains; it runs until its model is there",
    )
    _add_model(plan)
    _add_machine(plan)
    _add_outputs(plan)
    plan.set_defaults(command=_prepare)


def _add_model(plan: Parser) -> None:
    model = plan.add_argument_group("model and training")
    model.add_argument(
        "--model", type=Path, metavar="FILE", help="a Hugging Face config.json, or its folder"
    )
    model.add_argument(
        "--trace", type=Path, metavar=f"FILE{RAW_SUFFIX}", help="a trace of `memtide run --trace`"
    )
    model.add_argument(
        "--batch",
        type=_count,
        metavar="N",
        help="sequences in a step, on all devices together (default: the fastest that fits)",
    )
    model.add_argument(
        "--sequence",
        type=_count,
        metavar="N",
        help="tokens in a sequence (default: 4096, or as "
        "many as the model has positions for, or as fit)",
    )
    model.add_argument(
        "--micro-batch", type=_count, metavar="N", help="sequences that a device computes at once"
    )
    model.add_argument(
        "--optimizer",
        metavar="NAME",
        help=f"{', '.join(optimizer_names())}, or the bytes of a weight, its gradient and its "
        "optimizer's states, as 2+2+12 (default: the script's; without one adamw, which is that)",
    )
    model.add_argument(
        "--optimizer-on", choices=("host", "device"), help="where the optimizer computes"
    )
    model.add_argument(
        "--activations",
        choices=("keep", "move", "recompute"),
        help="what those of every block do (default: the plan chooses)",
    )
    model.add_argument(
        "--lora-rank", type=_count, metavar="N", help="train adapters of this rank, not the model"
    )
    model.add_argument(
        "--compute-type",
        choices=_COMPUTE_TYPES,
        help="of products of matrices (default: the script's, or bfloat16)",
    )


def _add_machine(plan: Parser) -> None:
    machine = plan.add_argument_group("machine")
    machine.add_argument(
        "--machine",
        metavar="NAME",
        help="a machine of the catalogue, a file, or `this`, which `memtide doctor --measure` "
        "has measured",
    )
    machine.add_argument("--gpu", metavar="NAME", help="a GPU of the catalogue")
    machine.add_argument("--devices", type=int, metavar="N", help="equal devices")
    machine.add_argument("--device-memory", metavar="SIZE", help="of each device, for training")
    machine.add_argument("--host-memory", metavar="SIZE", help="host memory")
    machine.add_argument("--link", metavar="RATE", help="between host and each device, one way")
    machine.add_argument(
        "--ssd",
        metavar="RATE",
        help="of the drive: 3.5GB/s, or reads and writes: 7GB/s,5GB/s; or none",
    )
    machine.add_argument("--ssd-size", metavar="SIZE", help="of the drive (default: 2TB)")
    machine.add_argument(
        "--ssd-life", metavar="SIZE", help="what may be written to the drive, by its maker: 1200TB"
    )


def _add_outputs(plan: Parser) -> None:
    output = plan.add_argument_group("answers")
    output.add_argument("--json", action="store_true", help="print the answer as JSON")
    output.add_argument(
        "--ways", action="store_true", help="compare the ways of using several devices"
    )
    output.add_argument(
        "--output", type=Path, metavar="FILE.json", help="write it, for `memtide run --plan`"
    )
    output.add_argument(
        "--buy", metavar="TARGET", help="the cheapest machine that reaches 2000tokens/s"
    )
    output.add_argument(
        "--sweep",
        metavar="RANGE",
        help="the speed by one budget: host-memory=16GiB..256GiB, device-memory=4GiB..24GiB or "
        "ssd=1GB/s..14GB/s, with the number of budgets after a colon",
    )
    output.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the sweep")
    output.add_argument(
        "--check", action="store_true", help="compare predictions with what others measured"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 1")
    return int(text)


def _prepare(flags: argparse.Namespace) -> _Action:
    if flags.check:
        return _check(flags)
    if flags.ways:
        return _ways(flags)
    if flags.picture is not None and flags.sweep is None:
        raise UsageError("--picture draws a sweep: add --sweep host-memory=16GiB..256GiB")
    if (flags.buy is not None) + (flags.sweep is not None) + (flags.output is not None) > 1:
        raise UsageError(
            "--buy, --sweep and --output are of different questions: ask one at a time"
        )
    if flags.buy is not None:
        return _buy(flags)
    if flags.sweep is not None:
        return _sweep(flags)
    return _plan(flags)


def _plan(flags: argparse.Namespace) -> _Action:
    from memtide._plan_file import plan_file

    from memtide_plan.command import report as plan_report
    from memtide_plan.fastest import ask

    if flags.output is not None:
        check_writable(flags.output)
    planned = ask(_question(flags))
    if flags.output is not None and planned.answer.fits:
        flags.output.write_text(plan_file.dumps(planned) + "\n", encoding="utf-8")
    if flags.json:
        print(plan_file.dumps(planned))
    else:
        _print(plan_report.answer_lines(planned))
    return lambda: 0 if planned.answer.fits else _EXIT_DOES_NOT_FIT


def _buy(flags: argparse.Namespace) -> _Action:
    from memtide._plan_file import plan_file

    from memtide_plan import catalogue
    from memtide_plan.ask import units
    from memtide_plan.buy import buy
    from memtide_plan.command import report as plan_report

    target = units.tokens_per_s("--buy", flags.buy)
    machines = list(catalogue.machines())
    bought = buy(_question(flags, machines[0]), target, machines)
    if flags.json:
        print(json.dumps([plan_file.as_json(each) for each in bought.reaching], indent=1))
    else:
        _print(plan_report.bought_lines(bought, target))
    return lambda: 0 if bought.reaching else _EXIT_DOES_NOT_FIT


def _sweep(flags: argparse.Namespace) -> _Action:
    from memtide._plan_file import plan_file
    from memtide._plot import sweep_plot

    from memtide_plan.command import report as plan_report
    from memtide_plan.sweep import range_of, sweep

    budgets = range_of(flags.sweep)
    if flags.picture is not None:
        sweep_plot.check_output(flags.picture)
    question = _question(flags)
    points = sweep(question, budgets)
    if flags.picture is not None:
        title = f"{question.model.name} on {question.machine.device.name}"
        sweep_plot.draw(plan_report.curve(budgets.axis, points, title), flags.picture)
    if flags.json:
        print(json.dumps([plan_file.as_json(each.planned) for each in points], indent=1))
    else:
        _print(plan_report.sweep_lines(budgets.axis, points))
    fits = any(point.planned.answer.fits for point in points)
    return lambda: 0 if fits else _EXIT_DOES_NOT_FIT


def _check(flags: argparse.Namespace) -> _Action:
    from memtide_plan import check

    status = check.run(as_json=flags.json)
    return lambda: status


def _ways(flags: argparse.Namespace) -> _Action:
    from memtide_plan.command.device_strategies import run_device_strategies

    return run_device_strategies(_question(flags), as_json=flags.json)


def _question(flags: argparse.Namespace, machine: Machine | None = None) -> Question:
    """The question that the options ask. `machine`: one that stands for those that they do not
    name."""
    from memtide._plan_file.question import Question
    from memtide._plan_file.training import States, Training

    from memtide_plan.ask.machine import machine_of
    from memtide_plan.ask.states import states_of
    from memtide_plan.models.described import Options
    from memtide_plan.models.source import model_of

    words = MachineWords(**{name: getattr(flags, name) for name in _MACHINE_OPTIONS})
    if machine is None:
        machine = machine_of(words)
    elif words != MachineWords():
        raise UsageError("--buy asks for a machine of the catalogue: leave out what names one")
    states = None if flags.optimizer is None else states_of(flags.optimizer)
    described = model_of(
        _source(flags),
        Options(
            compute_type=flags.compute_type,
            lora_rank=flags.lora_rank or 0,
            batch=flags.batch,
            sequence=flags.sequence,
            # A GPU computes beside the thread whose passes a trace shows.
            computes_here=flags.machine == THIS and machine.device.pool_bytes == 0,
            arguments=tuple(flags.arguments),
        ),
    )
    for note in described.notes:
        print(f"memtide: {note}", file=sys.stderr)
    return Question(
        model=described.model,
        machine=machine,
        training=Training(
            batch=1,
            sequence=1,
            micro_batch=flags.micro_batch,
            states=states or described.states or States(),
            compute_type=flags.compute_type or described.compute_type or _COMPUTE_TYPES[0],
            optimizer_on=flags.optimizer_on,
            activations=flags.activations,
        ),
        batch=flags.batch or described.batch,
        sequence=flags.sequence or described.sequence,
    )


def _source(flags: argparse.Namespace) -> str:
    named = [each for each in (flags.script, flags.model, flags.trace) if each is not None]
    if len(named) != 1:
        raise UsageError(
            "one model is asked for: a script, or --model config.json, or "
            f"--trace FILE{RAW_SUFFIX}"
        )
    if flags.arguments and flags.script is None:
        raise UsageError("what stands after -- is for a script, and there is none")
    return str(named[0])


def _print(lines: Iterator[str]) -> None:
    # The commands of a node's service do without what prints it.
    from memtide._util.console import make_console

    console = make_console()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
