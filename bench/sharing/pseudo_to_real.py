"""Compares a deep GPT whose layers share at first and then part with one that trains from scratch:
`pseudo_to_real.py [--steps N] [--picture FILE]`, run by hand with memtide on Python's path.

Both run under `memtide run` with a host pool of an eighth of the states of the whole model, the
rest on SSD. Sharing layers save the traffic of states, not compute. Half of the steps are shared.
Also printed: what sharing needs beside one layer, and what delinking takes in plain torch and in
chunks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import memtide
import torch
import train_gpt
from memtide._daemon import inspection
from memtide._memory.managed_memory import memory_of
from torch import nn
from torch.nn import functional

_MEMTIDE = Path(__file__).resolve().parents[2] / "tools" / "memtide"
_MIB = 2**20
_LAYERS, _WIDTH, _CONTEXT, _BATCH = 24, 256, 64, 4
_STATE_BYTES = 16  # A parameter, its gradient and two moments, in fp32.
_SEEDS = 3
_MODES = ("from scratch", "shared, then delinked")

# By step: the seconds since the start, and the loss.
Curve = list[tuple[float, float]]


def _train(mode: str, seed: int, steps: int) -> Curve:
    torch.manual_seed(seed)
    model = train_gpt.Gpt(_LAYERS, _WIDTH, _CONTEXT)
    shares = mode != _MODES[0]
    if shares:
        memtide.share_layers(list(model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    corpus = train_gpt.read_corpus()
    generator = torch.Generator().manual_seed(seed)
    curve = []
    start = time.monotonic()
    for step in range(steps):
        if shares and step == steps // 2:
            memtide.delink(list(model.blocks), optimizer)
        inputs, targets = train_gpt.draw_batch(corpus, _BATCH, _CONTEXT, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append((time.monotonic() - start, loss.item()))
    return curve


def _run(mode: str, seed: int, steps: int, folder: Path) -> Curve:
    parameters = sum(p.numel() for p in train_gpt.Gpt(_LAYERS, _WIDTH, _CONTEXT).parameters())
    pool_mib = parameters * _STATE_BYTES // 8 // _MIB
    result = folder / "curve.json"
    subprocess.run(
        [
            *(_MEMTIDE, "run", "--quiet"),
            *(f"--host-pool={pool_mib}MiB", "--ssd-pool=2GiB", f"--ssd-dir={folder}"),
            *(__file__, "--train", mode, str(seed), str(steps), str(result)),
        ],
        check=True,
    )
    curve: Curve = json.loads(result.read_text(encoding="ascii"))
    return curve


def _state_bytes(layers: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The bytes of parameters, gradients and moments, each storage once."""
    tensors = [t for p in layers.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    storages = {torch._C._data_address(t): t.nbytes for t in tensors if t is not None}
    return sum(storages.values())


def _stepped(count: int) -> tuple[nn.ModuleList, torch.optim.Optimizer]:
    """Layers that share, after a step."""
    layers = nn.ModuleList(train_gpt.Block(_WIDTH, 4) for _ in range(count))
    if count > 1:
        memtide.share_layers(list(layers))
    optimizer = torch.optim.AdamW(layers.parameters())
    x = torch.randn(1, 8, _WIDTH)
    for layer in layers:
        x = layer(x)
    x.sum().backward()
    optimizer.step()
    return layers, optimizer


def _print_costs() -> None:
    layers, optimizer = _stepped(_LAYERS)
    shared = _state_bytes(layers, optimizer)
    print(
        f"| states of {_LAYERS} layers that share / of one | "
        f"{shared / _state_bytes(*_stepped(1)):.3f} | ≤ 1.02 |"
    )
    start = time.perf_counter()
    memtide.delink(list(layers), optimizer)
    print(f"| delink | {1e3 * (time.perf_counter() - start):.1f} ms | ≤ 10 ms |")
    print(
        f"| bytes of states before the first write | "
        f"{_state_bytes(layers, optimizer) - shared:+d} | 0 |",
        flush=True,
    )


def _print_costs_in_chunks() -> None:
    """The same under `memtide run`, with the states of a layer in host memory."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "costs.json"
        subprocess.run(
            [
                *(_MEMTIDE, "run", "--quiet", "--host-pool=256MiB", "--ssd-pool=2GiB"),
                *(f"--ssd-dir={folder}", "--chunk-size=2MiB"),
                *(__file__, "--delink-in-chunks", str(result)),
            ],
            check=True,
        )
        costs = json.loads(result.read_text(encoding="ascii"))
    print(f"| delink, in chunks | {costs['ms']:.1f} ms | ≤ 10 ms |")
    print(
        f"| bytes of chunks before the first write | {costs['bytes']:+d}, of which "
        f"{costs['shared_bytes']} would be more if they were copied | 0 |",
        flush=True,
    )


def _delink_in_chunks(result: Path) -> None:
    layers, optimizer = _stepped(_LAYERS)
    before = _chunk_bytes(layers)
    start = time.perf_counter()
    memtide.delink(list(layers), optimizer)
    costs = {"ms": 1e3 * (time.perf_counter() - start)}
    after = _chunk_bytes(layers)
    costs["bytes"] = after["allocated_bytes"] - before["allocated_bytes"]
    costs["shared_bytes"] = after["shared_bytes"] - before["shared_bytes"]
    result.write_text(json.dumps(costs), encoding="ascii")


def _chunk_bytes(layers: nn.Module) -> dict[str, int]:
    """The sums over all kinds that the node's daemon reports."""
    memory = memory_of(next(layers.parameters()))
    assert memory is not None
    kinds = inspection.inspect(Path(memory.client.socket_dir)).kinds.values()
    return {
        "allocated_bytes": sum(kind.allocated_bytes for kind in kinds),
        "shared_bytes": sum(kind.shared_bytes for kind in kinds),
    }


def _draw(curves: dict[str, list[Curve]], picture: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    for number, (mode, of_seeds) in enumerate(curves.items()):
        for curve in of_seeds:
            label = mode if curve is of_seeds[0] else None
            axes.plot(*zip(*curve, strict=True), color=f"C{number}", alpha=0.7, label=label)
    axes.set(xlabel="seconds", ylabel="loss", title="States of eight times the host pool")
    axes.legend()
    figure.savefig(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", type=Path, help="a file for loss over time, such as a .png")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--delink-in-chunks", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.delink_in_chunks is not None:
        _delink_in_chunks(arguments.delink_in_chunks)
        return
    if arguments.train is not None:
        mode, seed, steps, result = arguments.train
        curve = _train(mode, int(seed), int(steps))
        Path(result).write_text(json.dumps(curve), encoding="ascii")
        return
    print("| what | value | goal |\n|---|---|---|")
    _print_costs()
    _print_costs_in_chunks()
    curves: dict[str, list[Curve]] = {mode: [] for mode in _MODES}
    print("\n| seed | way | seconds | loss of the last 10 steps |\n|---|---|---|---|", flush=True)
    for seed in range(_SEEDS):
        for mode in _MODES:
            with tempfile.TemporaryDirectory() as folder:
                curve = _run(mode, seed, arguments.steps, Path(folder))
            curves[mode].append(curve)
            loss = statistics.fmean(loss for _, loss in curve[-10:])
            print(f"| {seed} | {mode} | {curve[-1][0]:.1f} | {loss:.3f} |", flush=True)
    if arguments.picture is not None:
        _draw(curves, arguments.picture)


if __name__ == "__main__":
    main()
