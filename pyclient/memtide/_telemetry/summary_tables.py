"""The tables that `memtide run` prints at its end."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memtide._daemon.inspection import KINDS, LINKS, STALLS, Node, Usage
from memtide._memory.chunk_size import Estimate
from memtide._telemetry.recorder import Summary
from memtide._util.sizes import format_size

_LINK_NAMES = {
    "host_to_device_bytes": "host → device",
    "device_to_host_bytes": "device → host",
    "ssd_read_bytes": "ssd → host",
    "ssd_written_bytes": "host → ssd",
    "zeroed_bytes": "zeroed",
}
_STALL_NAMES = {
    "stalled_on_ssd": "ssd",
    "stalled_on_copy": "device copies",
    "stalled_on_room": "room",
    "stalled_on_budget": "a budget of writes to SSD",
}

_NOT_WORTH_A_LINE = 0.02  # A part of the model.


def print_summary(summary: Summary, console: Console) -> None:
    """Prints the cost of the run in tables."""
    head = Text("memtide", style="bold cyan")
    head.append(f"  {summary.seconds:.1f} s", style="bold")
    if summary.iterations:
        head.append(
            f", {summary.iterations} steps of {summary.typical_seconds():.3f} s (median)",
            style="default",
        )
    head.append(f", {summary.chunks} chunks of {format_size(summary.chunk_bytes)}", style="dim")
    console.print()
    console.print(head)
    console.print(pools_table(summary.node))
    if summary.node.kinds:
        console.print(kinds_table(summary.node, summary.shadow_bytes))
    if line := shared_line(summary.node):
        console.print(line)
    if summary.budget is not None:
        _print_budget(summary.budget, console)
    console.print(_traffic_table(summary))
    counts = summary.client
    waits = summary.waits_s
    if summary.iterations and summary.chunks:
        console.print(steps_line(summary.offloaded_steps, summary.iterations, summary.device))
    if line := outside_line(summary):
        console.print(line)
    print_if_nothing_managed(summary, console)
    if summary.ballooned_bytes and summary.budget is not None:
        console.print(
            f"The host pool gave {format_size(summary.ballooned_bytes)} in all to the script, as "
            "the budget is for both."
        )
    elif summary.ballooned_bytes:
        console.print(
            "The machine was short of memory: the balloon took "
            f"{format_size(summary.ballooned_bytes)} in all from the host pool for other programs. "
            "A smaller --host-pool avoids that.",
            style="yellow",
        )
    for tier, reclaimed_bytes in summary.reclaimed_bytes.items():
        if reclaimed_bytes:
            console.print(
                f"Jobs shared the node's {tier} pool: {format_size(reclaimed_bytes)} in all was "
                "reclaimed from jobs for others.",
                style="yellow",
            )
    console.print(
        f"{counts['acquires']} chunks leased, {counts['acquire_hits']} of them held already; "
        f"{counts['faults']} page faults; waited {summary.waited_s:.2f} s for leases "
        f"({waits['call']:.2f} for the daemon, {waits['map']:.2f} mapping, "
        f"{waits['unmap']:.2f} unmapping)",
        style="dim",
    )
    for line in (protected_line(summary), _hooks_line(summary.hooks)):
        if line:
            console.print(line, style="dim")


def print_advice(present: Estimate, best: Estimate, console: Console) -> None:
    """Recommends another chunk size, with the estimates for the present one and that one."""
    flag = f"--chunk-size {best.chunk_bytes >> 20}MiB"
    console.print(
        f"memtide: by estimate, another chunk size suits this model better: {flag}\n"
        f"  now   {present}\n"
        f"  then  {best}",
        style="yellow",
    )


def pools_table(node: Node) -> Table:
    """A row for each pool. The states of a pool add up to its capacity."""
    states = ["used", "reserved", "quarantined", "ballooned", "scrubbing", "free"]
    for rare in ("quarantined", "ballooned"):
        # It is 0 unless a process on a GPU was killed, or the machine is short of memory.
        if not any(getattr(pool, f"{rare}_bytes") for pool in node.pools):
            states.remove(rare)
    table = _table("pool", "capacity", *states)
    for pool in node.pools:
        sizes = [pool.capacity_bytes, *(getattr(pool, f"{state}_bytes") for state in states)]
        table.add_row(pool.name, *map(format_size, sizes))
    return table


def kinds_table(node: Node, shadow_bytes: Mapping[str, int] = MappingProxyType({})) -> Table:
    """A row for each kind of chunk: bytes allocated, and bytes with a valid copy on each tier.
    Shadow chunks (`shadow_bytes`, by kind, a part of what is allocated) have a row of their own;
    between steps they hold nothing, and what they hold during one is shown with their kind."""
    table = _table("states", "allocated", *(f"on {tier}" for tier in node.tiers))
    total = Usage()
    for kind in KINDS:
        usage = node.kinds.get(kind)
        if usage is None or not usage.allocated_bytes:
            continue
        total = _sum(total, usage)
        shown = replace(usage, allocated_bytes=usage.allocated_bytes - shadow_bytes.get(kind, 0))
        _add_usage(table, kind.replace("_", " "), shown, node)
    if shadow_bytes:
        table.add_row("shadow copies", format_size(sum(shadow_bytes.values())))
    table.add_section()
    _add_usage(table, "total", total, node)
    return table


def shared_line(node: Node) -> str:
    """The memory that sessions save by sharing contents; empty where none are shared."""
    total = functools.reduce(_sum, node.kinds.values(), Usage())
    if not total.shared_bytes:
        return ""
    apart = total.allocated_bytes + total.shared_bytes
    return (
        f"what sessions share is kept once: {format_size(total.allocated_bytes)} of chunks instead "
        f"of {format_size(apart)}"
    )


def steps_line(in_parts: int, steps: int, device: str) -> str:
    """The code that computed the steps of optimizers, and whether to torch's bits. `in_parts`: how
    many of them were offloaded. `device`: where chunks are leased."""
    if not in_parts:
        return "steps: torch's bits, whole, in the script's thread"
    if device == "cpu":
        return f"steps: torch's bits, {in_parts} of {steps} in parts beside training"
    return f"steps: {in_parts} of {steps} in parts on the host, to 1e-6 of the GPU's in fp32"


def outside_line(summary: Summary) -> str:
    """The bytes of the model that are in no chunk, and why; empty if they are hardly any."""
    outside = sum(summary.outside_bytes.values())
    if outside <= summary.model_bytes * _NOT_WORTH_A_LINE:
        return ""
    reasons = sorted(summary.outside_bytes.items(), key=lambda item: -item[1])
    listed = "; ".join(f"{format_size(size_bytes)} {reason}" for reason, size_bytes in reasons)
    return (
        f"Of the model's {format_size(summary.model_bytes)}, {format_size(outside)} are not in "
        f"chunks: {listed}"
    )


def protected_line(summary: Summary) -> str:
    """The iterations in which released chunks were unmapped; empty in host memory, where there are
    page faults."""
    protected = summary.client["protected_iterations"]
    if not protected:
        return ""
    return (
        f"{protected} of {summary.iterations} iterations protected: each access without a lease "
        "was fatal"
    )


def print_if_nothing_managed(summary: Summary, console: Console, subject: str = "memtide") -> None:
    """Prints a warning if this process did not train, or trained without any chunk."""
    if summary.chunks or summary.client["acquires"]:
        return
    if not summary.iterations:
        console.print(
            f"{subject} managed nothing: no optimizer stepped in this process",
            style="yellow",
        )
        return
    advice = "--device none" if summary.device != "cpu" else "--device cuda"
    console.print(
        f"{subject} managed nothing: its chunks are on {summary.device}, and the script trained no "
        "tensor there that memtide can manage (fully_shard is supported, the older "
        f"FullyShardedDataParallel is not). If the script trains on another device: {advice}",
        style="yellow",
    )


def _hooks_line(hooks: Mapping[str, int]) -> str:
    if not hooks["operations"]:
        return ""
    return (
        f"{hooks['operations']} operations dispatched in {hooks['dispatch_ns'] / 1e9:.2f} s, "
        f"{hooks['gradients']} gradients moved in {hooks['gradient_ns'] / 1e9:.2f} s"
    )


def _print_budget(budget: Mapping[str, Any], console: Console) -> None:
    """Prints a line for each limit of a budget (Budget.as_json), with the most that was used."""
    for name in ("device", "host"):
        limit_bytes = budget.get(f"{name}_bytes")
        if limit_bytes is None:
            continue
        used_bytes, own_bytes = (budget[f"{name}_most_{of}_bytes"] for of in ("used", "own"))
        exceeded = used_bytes > limit_bytes
        console.print(
            f"{name} memory: the budget was {format_size(limit_bytes)}, and script and daemon used "
            f"at most {format_size(used_bytes)}{', which is more' if exceeded else ''}; the script "
            f"itself, beside activations, {format_size(own_bytes)}",
            style="yellow" if exceeded else "dim",
        )
    activations = budget.get("activations")
    if activations:
        console.print(_activations_line(activations), style="dim")


def _activations_line(activations: Mapping[str, Any]) -> str:
    moved = format_size(activations["moved_bytes"])
    line = f"activations: {activations['blocks']} blocks, {activations['recomputed_blocks']} "
    line += f"recomputed; {moved} moved to chunks"
    outcome = activations["outcome"]
    if outcome and outcome["measured_s"] is not None:
        line += f"; predicted {outcome['predicted_s']:.2f} s, was {outcome['measured_s']:.2f} s"
    if activations["moved_bytes"] and not activations["is_planned"]:
        line += "; not planned, which takes four iterations that are short of memory"
    reasons = activations["blocks_left_alone"]
    if reasons:
        reason, count = max(reasons.items(), key=lambda each: each[1])
        line += f"; {sum(reasons.values())} not to be recomputed, {count} as {reason}"
    return line


def _traffic_table(summary: Summary) -> Table:
    table = _table("moved", "total", "per step", "stalled on", "total", "per step")
    steps = max(1, summary.iterations)
    links = [link for link in LINKS if summary.moved_bytes.get(link)]
    stalls = [name for name in STALLS if summary.stalled_s.get(name, 0) > 0]
    for row in range(max(len(links), len(stalls), 1)):
        cells = ["", "", ""] if row or links else ["nothing", "", ""]
        if row < len(links):
            moved = summary.moved_bytes[links[row]]
            cells = [_LINK_NAMES[links[row]], format_size(moved), format_size(moved / steps)]
        if row < len(stalls):
            stalled = summary.stalled_s[stalls[row]]
            cells += [_STALL_NAMES[stalls[row]], f"{stalled:.2f} s", f"{stalled / steps:.3f} s"]
        else:
            cells += ["", "", ""] if row or stalls else ["nothing", "", ""]
        table.add_row(*cells)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, style="cyan", no_wrap=True)
    for name in others:
        right = not name.startswith("stalled")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def _add_usage(table: Table, name: str, usage: Usage, node: Node) -> None:
    tiers = [format_size(getattr(usage, f"{tier}_bytes")) for tier in node.tiers]
    table.add_row(name, format_size(usage.allocated_bytes), *tiers)


def _sum(left: Usage, right: Usage) -> Usage:
    names = Usage.__dataclass_fields__
    return Usage(**{name: getattr(left, name) + getattr(right, name) for name in names})
