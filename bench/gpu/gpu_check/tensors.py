"""Checks torch tensors over GPU memory that is mapped and unmapped. Prints lines of JSON.

tensors.py SOCKET_DIR CHUNK_MIB
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from memtide._capi.client import Access, Client, Kind, Places
from memtide._capi.library import Options
from memtide._memory.arena import Arena, Storages
from memtide._util.devices import device_name

from gpu_check.client_parts import LAST_CHECK

_ROUNDS = 30
_LEASE_GOAL_US = 150


def say(name: str, **found: Any) -> None:
    """Prints one row."""
    print(json.dumps({"name": name, **found}), flush=True)


class _Announced:
    """An object with a __cuda_array_interface__ for given bytes."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def lease_cost(client: Client, chunk_mib: int) -> None:
    """Times leases of a chunk that is on the device; each lease maps it again."""
    first = client.allocate(Kind.OTHER, 1)
    places = Places([first])
    times = []
    for _ in range(_ROUNDS + 1):
        client.flush()
        start = time.perf_counter()
        client.acquire(places, Access.READ)
        times.append((time.perf_counter() - start) * 1e6)
        client.release(places)
    median = statistics.median(times[1:])
    say(
        "lease of a chunk on the device, with its mapping",
        value=median,
        unit="us",
        at_most=_LEASE_GOAL_US,
        note=f"{chunk_mib} MiB",
    )
    client.flush()
    client.free(first, 1)


def remap_under_a_tensor(client: Client, storages: Storages) -> None:
    """Checks that a bfloat16 tensor has its values and address after its chunk was evicted."""
    arena = Arena(storages, Kind.PARAMETER)
    count = client.properties.chunk_bytes // 2
    tensor = arena.empty((count,), (1,), torch.bfloat16)
    place = (tensor.data_ptr() - client.properties.base) // client.properties.chunk_bytes
    places = Places([place])
    wanted = torch.arange(count, device=storages.device) % 251
    client.acquire(places, Access.WRITE)
    tensor.copy_(wanted.to(torch.bfloat16))
    address = tensor.data_ptr()
    client.release(places)
    client.evict(places)
    client.acquire(places, Access.READ)
    same = bool((tensor.float() == wanted.to(torch.bfloat16).float()).all())
    say(
        "a bfloat16 tensor made by DLPack before its memory was mapped, after eviction and return",
        answer="same bytes, same address" if same else "other bytes",
        met=same and tensor.data_ptr() == address,
    )
    if storages.device.type == "cuda":
        seen = torch.as_tensor(_Announced(address, count * 2), device=storages.device)
        equal = bool((seen.view(torch.bfloat16) == tensor).all())
        say("the same bytes by __cuda_array_interface__", answer="yes" if equal else "no")
    client.release(places)


def swap_data_mid_graph(device: str) -> None:
    """Checks gradients when `.data` of a parameter is replaced between forward and backward."""
    weight = torch.nn.Parameter(torch.full((64, 64), 2.0, device=device))
    inputs = torch.ones(1, 64, device=device, requires_grad=True)
    output = (inputs @ weight).sum()
    weight.data = weight.data.clone()
    output.backward()
    right = inputs.grad is not None and bool((inputs.grad == 128).all())
    say("`.data` swapped for equal bytes between forward and backward", met=right, answer="right")


def _own_event(pipe: Connection) -> None:
    event = torch.cuda.Event(interprocess=True)
    event.record()
    pipe.send_bytes(event.ipc_handle())
    pipe.recv()  # Blocks until this process is killed.


def event_of_a_killed_process(device: str) -> None:
    """Waits for an interprocess event whose owner was killed. memtide shares none, others do."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    owner = context.Process(target=_own_event, args=(theirs,))
    owner.start()
    event = torch.cuda.Event.from_ipc_handle(torch.device(device), ours.recv_bytes())
    owner.kill()
    owner.join()
    try:
        event.synchronize()
        answer = "returns at once"
    except RuntimeError as error:
        answer = str(error).splitlines()[0]
    say("waiting for an interprocess event whose owner was killed", answer=answer)


def read_without_lease(client: Client, storages: Storages) -> None:
    """Reads a tensor whose chunk is not mapped, which ends this process, or its CUDA context."""
    arena = Arena(storages, Kind.PARAMETER)
    tensor = arena.empty((1024,), (1,), torch.float32)
    place = (tensor.data_ptr() - client.properties.base) // client.properties.chunk_bytes
    client.evict(Places([place]))
    say(LAST_CHECK)
    print(tensor.sum().item(), file=sys.stderr)


def main(arguments: list[str]) -> None:
    """Makes all checks of this module with one client."""
    socket_dir, chunk_mib = arguments[0], int(arguments[1])
    client = Client(Options(socket_dir=socket_dir, chunk_bytes=chunk_mib << 20))
    device = device_name(client.properties.dl_device)
    say("tensors over chunks are on", answer=device)
    lease_cost(client, chunk_mib)
    storages = Storages(client)
    remap_under_a_tensor(client, storages)
    swap_data_mid_graph(device)
    if device.startswith("cuda"):
        event_of_a_killed_process(device)
    read_without_lease(client, storages)


if __name__ == "__main__":
    main(sys.argv[1:])
