#!/usr/bin/env python3
"""The table at the end of tools/demo, and its verdict: were the losses equal?

    tools/demo_report.py FOLDER

FOLDER holds plain.jsonl and memtide.jsonl (one line a step: loss as hexadecimal float, seconds),
stats.json and tide.png. Exits 1 when a loss differs by a bit, or a step is missing.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# The first steps create the optimizer's state and touch every page for the first time.
WARM_UP_STEPS = 2
LINKS = {
    "host_to_device_bytes": "host to device",
    "device_to_host_bytes": "device to host",
    "ssd_read_bytes": "SSD to host",
    "ssd_written_bytes": "host to SSD",
}
STALLS = {
    "stalled_on_ssd": "SSD",
    "stalled_on_copy": "device copies",
    "stalled_on_room": "room",
}


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def step_seconds(log: list[dict[str, Any]]) -> float:
    return statistics.median(entry["seconds"] for entry in log[WARM_UP_STEPS:])


def mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def first_difference(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str | None:
    """Describes the first difference in a loss; None if there is none."""
    if len(plain) != len(ours) or not plain:
        return f"{len(plain)} plain steps, {len(ours)} under memtide"
    for number, (left, right) in enumerate(zip(plain, ours, strict=True), 1):
        if left["loss"] != right["loss"]:
            return f"step {number}: {left['loss']} plain, {right['loss']} under memtide"
    return None


def report(folder: Path, console: Console) -> int:
    plain, ours = read_log(folder / "plain.jsonl"), read_log(folder / "memtide.jsonl")
    stats = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
    steady = [r for r in stats["records"] if r["first_iteration"] > WARM_UP_STEPS]
    iterations = max(1, sum(record["iterations"] for record in steady))

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for kind, usage in stats["kinds"].items():
        held_bytes = usage["allocated_bytes"] - stats["shadow_bytes"].get(kind, 0)
        if held_bytes:
            table.add_row(f"states: {kind.replace('_', ' ')}", mib(held_bytes))
    if stats["shadow_bytes"]:
        shadow_bytes = sum(stats["shadow_bytes"].values())
        table.add_row("shadow copies", mib(shadow_bytes), "for steps, which hold nothing between")
    for pool in stats["pools"]:
        table.add_row(f"pool: {pool['tier']}", mib(pool["capacity_bytes"]))
    for link, name in LINKS.items():
        moved = sum(record["moved_bytes"][link] for record in steady) / iterations
        table.add_row(f"moved a step: {name}", mib(moved))
    for stall, name in STALLS.items():
        stalled = sum(record["stalled_s"][stall] for record in steady) / iterations
        table.add_row(f"stalled a step on {name}", f"{stalled:.3f} s")
    plain_s, our_s = step_seconds(plain), step_seconds(ours)
    table.add_row("step, plain", f"{plain_s:.2f} s", "median")
    table.add_row("step, memtide", f"{our_s:.2f} s", f"{our_s / plain_s:.2f}x plain")
    table.add_row("steps in parts, beside training", f"{stats['offloaded_steps']} of {len(ours)}")
    table.add_row("last loss", f"{float.fromhex(ours[-1]['loss']):.6f}" if ours else "none")
    console.print(table)

    difference = first_difference(plain, ours)
    if difference is not None:
        console.print(f"[bold red]The losses differ:[/] {difference}")
        return 1
    console.print(f"[bold green]All {len(plain)} losses are equal, bit for bit.[/]")
    console.print(f"The memory tide of one iteration: {folder / 'tide.png'}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(report(Path(sys.argv[1]), Console()))
