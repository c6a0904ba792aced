"""Measures the figures that memtide promises and judges them. tools/bench builds, then calls it.

Exit status: 0 when every goal is met, 3 when one is missed, 1 when a benchmark could not be run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import machine
from daemon_process import DaemonFailed
from figures import FIGURES, Measure, Verdict, judge
from rich.console import Console
from rich.table import Table
from suites import BY_NAME_ONLY, SUITES, Context, SuiteFailed

ROOT = Path(__file__).resolve().parent.parent
_MISSED = 3  # An exit status that neither Python (1) nor argparse (2) uses.


def show(verdicts: list[Verdict], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading, justify in (
        ("figure", "left"),
        ("what", "left"),
        ("limit", "right"),
        ("memtide", "right"),
        ("value", "right"),
        ("goal", "right"),
        ("pairs", "right"),
        ("others", "right"),
        ("", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=heading != "what")
    for verdict in verdicts:
        figure = verdict.figure
        measured = figure.measure is not Measure.ALONE
        sign = "≥" if figure.at_least else "≤"
        result = "[green]met[/]" if verdict.met else "[bold red]missed[/]"
        table.add_row(
            figure.name,
            figure.title,
            f"{number(verdict.limit)} {figure.sample_unit}" if verdict.limit else "",
            f"{number(verdict.product)} {figure.sample_unit}" if measured else "",
            f"{number(verdict.value)} {figure.unit}",
            f"{sign} {number(figure.goal)} {figure.unit}",
            str(len(verdict.pairs)),
            f"{verdict.others_cpus:.2f}",
            result + (" (noisy)" if verdict.noisy else ""),
            style="" if verdict.met else "bold",
        )
    console.print(table)
    console.print("others: CPUs that other processes used at the same time", style="dim")


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def as_json(verdicts: list[Verdict], about: dict[str, Any]) -> dict[str, Any]:
    return {
        **about,
        "figures": [
            {
                "name": verdict.figure.name,
                "title": verdict.figure.title,
                "measure": verdict.figure.measure.name.lower(),
                "value": verdict.value,
                "unit": verdict.figure.unit,
                "goal": verdict.figure.goal,
                "at_least": verdict.figure.at_least,
                "met": verdict.met,
                "noisy": verdict.noisy,
                "limit_median": verdict.limit,
                "product_median": verdict.product,
                "sample_unit": verdict.figure.sample_unit,
                "others_cpus_median": verdict.others_cpus,
                "pairs": [
                    {"limit": pair.limit, "product": pair.product, "others_cpus": pair.others_cpus}
                    for pair in verdict.pairs
                ],
            }
            for verdict in verdicts
        ],
    }


def measure(
    names: list[str], context: Context, console: Console
) -> tuple[list[Verdict], dict[str, str]]:
    """Returns the verdicts, in the order of the table, and the errors of suites by name."""
    samples = {}
    failed = {}
    for name in names:
        console.print(f"{name} ...", style="dim")
        try:
            samples |= SUITES[name](context)
        except (SuiteFailed, DaemonFailed) as error:
            failed[name] = str(error)
    return [judge(f, samples[f.name]) for f in FIGURES if f.name in samples], failed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--binaries", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here too")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SUITES,
        default=[name for name in SUITES if name not in BY_NAME_ONLY],
        metavar="NAME",
        help=str(list(SUITES)),
    )
    parser.add_argument("--quick", action="store_true", help="under three minutes, less certain")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="one round each, to see that they run; no valid figures",
    )
    parser.add_argument(
        "--ssd-dir",
        type=Path,
        default=Path(os.environ["MEMTIDE_CACHE"]) / "bench",
        help="a directory on the disk to measure (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    context = Context(
        arguments.binaries,
        ROOT,
        arguments.ssd_dir,
        quick=arguments.quick or arguments.smoke,
        smoke=arguments.smoke,
    )
    about = machine.describe(ROOT)
    about["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about["quick"] = context.quick
    console.print(
        f"{about['cpu']}, {about['cores']} CPUs, Linux {about['kernel']}, {about['pages']}; "
        f"{about['commit']}"
    )
    verdicts, failed = measure(arguments.only, context, console)
    show(verdicts, console)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps(as_json(verdicts, about), indent=1) + "\n", encoding="utf-8"
        )
    missed = [verdict.figure.name for verdict in verdicts if not verdict.met]
    if missed:
        console.print(f"[bold red]Missed:[/] {', '.join(missed)}")
    elif not failed:
        console.print(f"[bold green]All {len(verdicts)} goals are met.[/]")
    for name, why in failed.items():  # Errors come last, so that they do not scroll away.
        console.print(f"[bold red]{name} could not be run:[/] ", end="")
        console.print(why, markup=False)
    return 1 if failed else _MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(main())
