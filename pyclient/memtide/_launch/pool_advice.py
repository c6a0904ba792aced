"""Advice for the next run: another chunk size, or a larger pool."""

from __future__ import annotations

from rich.console import Console

from memtide._capi.client import Client
from memtide._launch import deferred_start
from memtide._memory import chunk_size
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._telemetry import summary_tables
from memtide._util.sizes import format_size

# A model's chunks with Adam, as a multiple of its parameters: these, their gradients, two states.
_STATES = 4


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
