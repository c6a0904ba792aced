"""Advice for the next run: another chunk size, a larger pool, or steps on the host."""

from __future__ import annotations

from rich.console import Console

from memtide._capi.client import Client
from memtide._daemon.inspection import Usage
from memtide._launch import deferred_start
from memtide._memory import chunk_size
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._telemetry import summary_tables
from memtide._telemetry.recorder import Summary
from memtide._util.sizes import format_size

# A model's chunks with Adam, as a multiple of its parameters: these, their gradients, two states.
_STATES = 4
_NOT_WORTH_A_LINE = 0.02  # A part of what crosses the link.


def print_chunk_size(client: Client, console: Console) -> None:
    """Prints a chunk size that is clearly better for the model that was trained, if there is one.
    The session was opened before there was a model from which to choose it (decision 11)."""
    runtime = deferred_start.current()
    estimates = chunk_size.clearly_better(
        runtime.states.parameters if runtime is not None else [],
        _shares(client),
        client.properties.chunk_bytes,
        min_slots=client.limits.min_slots,
    )
    if estimates is not None:
        summary_tables.print_advice(*estimates, console)


def print_steps_on_host(summary: Summary, console: Console) -> None:
    """Prints what --optimizer-on host would gain, if optimizers stepped on a GPU that could have
    stepped in parts on the host."""
    runtime = deferred_start.current()
    if runtime is None or not runtime.offloaded.could_be_in_parts:
        return
    if line := states_moved_line(summary):
        console.print(line)


def states_moved_line(summary: Summary) -> str:
    """The most that steps on the host would gain; empty where optimizer states stay on the GPU, or
    where the daemon's counters are of others, too. Each byte that is not there at the end came and
    left once in a step, unless less crossed the link in all."""
    node = summary.node
    if len(node.sessions) != 1 or node.others.chunk_count or not summary.iterations:
        return ""
    states = node.kinds.get("optimizer_state", Usage())
    moved_bytes = sum(
        summary.moved_bytes[link] / summary.iterations
        for link in ("host_to_device_bytes", "device_to_host_bytes")
    )
    saved_bytes = min(2 * (states.allocated_bytes - states.device_bytes), moved_bytes)
    if saved_bytes <= moved_bytes * _NOT_WORTH_A_LINE:
        return ""
    waited_s = sum(summary.stalled_s[name] for name in ("stalled_on_copy", "stalled_on_room"))
    gained = min(1.0, saved_bytes / moved_bytes * waited_s / summary.iterating_s)
    return (
        f"Optimizer states were up to {format_size(saved_bytes)} of the {format_size(moved_bytes)} "
        "that crossed the link in a step. --optimizer-on host leaves them in host memory, with the "
        f"CPU's roundings: up to {gained:.0%} of the time was spent waiting for them"
    )


def lacking_room(client: Client, *, model_is_complete: bool) -> str | None:
    """Which pool the model's states do not fit, and which size they do, in a line. None: they fit,
    or there is no model. REQUIRES: a tensor met NoRoom."""
    shares = _shares(client)
    lowest = [tier for tier, share_bytes in shares.items() if share_bytes][-1]
    full = f"the {lowest} pool's {format_size(shares[lowest])} are full"
    if not model_is_complete:
        least_bytes = _STATES * shares[lowest]
        return (
            f"{full} before the model is made: with gradients and the states of Adam it needs more "
            f"than --{lowest}-pool {least_bytes >> 20}MiB"
        )
    runtime = deferred_start.current()
    expected = runtime.states.expected_parameters() if runtime is not None else []
    adopted = [parameter for parameter in expected if parameter.size_bytes >= SMALLEST_BYTES]
    if not adopted:
        return None
    needed = chunk_size.estimate(
        adopted, shares, client.properties.chunk_bytes, min_slots=client.limits.min_slots
    )
    if needed.allocated_bytes <= shares[lowest]:
        return None
    flag = f"--{lowest}-pool {needed.allocated_bytes >> 20}MiB"
    return f"{full}; {flag} holds the model's parameters, gradients and optimizer states"


def _shares(client: Client) -> dict[str, int]:
    properties = client.properties
    slots = {
        "device": properties.device_slots,
        "host": properties.host_slots,
        "ssd": properties.ssd_slots,
    }
    return {tier: count * properties.chunk_bytes for tier, count in slots.items()}
