"""Runs the checks of a GPU, part by part, and writes a table of what was predicted and found.

Without --part, runs all parts but those of --peer. The exit status is 1 if a goal was missed, a
check failed, or a row has no prediction.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from gpu_check.all_parts import ALL, TITLES
from gpu_check.facts import facts
from gpu_check.home import Home
from gpu_check.parts import Bench, Part, forget, is_done, run_part
from gpu_check.predictions import Predictions
from gpu_check.rows import Report


def chosen(options: argparse.Namespace) -> list[Part]:
    """The parts that the command line names, in their order."""
    if options.part:
        return [part for part in ALL if part.name in options.part]
    groups = options.essential or options.frontier
    parts = [
        part
        for part in ALL
        if not groups
        or (options.essential and part.essential)
        or (options.frontier and part.frontier)
    ]
    return [part for part in parts if options.peer or not part.peer]


def list_parts(parts: list[Part], predictions: Predictions) -> str:
    """The question of each part, its limit, and its predictions."""
    text = []
    for part in parts:
        kinds = {"essential": part.essential, "frontier": part.frontier, "with --peer": part.peer}
        kind = "".join(f", {kind}" for kind, is_so in kinds.items() if is_so)
        text.append(f"{part.name}: {part.asks} (at most {part.limit_s} s{kind})")
        for name, prediction in predictions.by_part.get(part.name, {}).items():
            text.append(f"    {name}: {prediction} [{prediction.source}]")
    text += ["", "Sources of the predictions:"]
    text += [f"    {name}: {what}" for name, what in predictions.sources.items()]
    return "\n".join(text)


def run(parts: list[Part], bench: Bench, goes_on: bool) -> None:
    """Runs the parts, or with `goes_on` those that are not done yet. A plain run that an earlier
    part has made is made anew with all parts, and kept with some of them."""
    if not goes_on:
        forget(bench.out, (part.name for part in parts))
        if len(parts) > 1:
            shutil.rmtree(bench.out / "references", ignore_errors=True)
    for part in parts:
        if goes_on and is_done(bench.out, part.name):
            say(f"{part.name}: done before")
            continue
        start = time.monotonic()
        say(f"{part.name}: {part.asks} (at most {part.limit_s} s)")
        run_part(part, bench)
        say(f"{part.name}: {time.monotonic() - start:.1f} s")


def say(text: str) -> None:
    """Reports progress, on standard error."""
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def report_of(bench: Bench, head: dict[str, str], predictions: Predictions) -> Report:
    """The rows of all parts that are done."""
    report = Report(head, predictions, judges_figures=not bench.home.fake)
    for part in ALL:
        report.add_part(part.name, bench.rows_of(part.name))
    return report


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="where the table goes")
    parser.add_argument("--commit", default="unknown", help="what the tarball was built from")
    parser.add_argument("--fake", action="store_true", help="on the fake CUDA")
    parser.add_argument("--essential", action="store_true", help="only what takes 10 minutes")
    parser.add_argument(
        "--frontier",
        action="store_true",
        help="only 5.5 minutes more: 8 B, and memory against speed",
    )
    names = [part.name for part in ALL]
    parser.add_argument(
        "--part", action="append", choices=names, metavar="NAME", help="only this one; repeatable"
    )
    parser.add_argument(
        "--continue", dest="goes_on", action="store_true", help="skip parts that are done in --out"
    )
    parser.add_argument("--list", action="store_true", help="print parts and predictions, run none")
    parser.add_argument("--peer", action="store_true", help="also run the same under DeepSpeed")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Runs the parts and writes the table."""
    options = parse(arguments)
    predictions = Predictions.read()
    parts = chosen(options)
    if options.list:
        print(list_parts(parts, predictions))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(Home(options.home.resolve(), options.fake), options.out.resolve())
    start = time.monotonic()
    run(parts, bench, options.goes_on)
    head = facts(bench.home, options.commit)
    head["took"] = f"{time.monotonic() - start:.0f} s"
    report = report_of(bench, head, predictions)
    table = report.as_markdown(TITLES)
    (options.out / "gpu-check.json").write_text(report.as_json() + "\n", encoding="utf-8")
    (options.out / "gpu-check.md").write_text(table, encoding="utf-8")
    print(table)
    for row in report.missed:
        print(f"gpu-check: missed: {row.section}: {row.name}: {row.result} {row.note}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
