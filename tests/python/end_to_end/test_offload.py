"""memtide.offload, called by scripts that run without `memtide run`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli

HEAD = """
import json, sys, hashlib, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
        schedule.step()

def digest():
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    for state in optimizer.state.values():
        for tensor in state.values():
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()
"""

PLAIN = HEAD + "train(6)\nprint(digest())\n"

OFFLOADED = HEAD + """
import warnings
warnings.simplefilter("error")
import memtide
from memtide._torch_hooks import runtime
train(2)
with memtide.offload(model, optimizer, host_pool="16MiB", ssd_pool=64 * 2**20) as handle:
    memory = runtime.current().memory
    manages = memory.addresses.manages
    train(2)
    inside = [manages(p) for p in model.parameters() if p.numel() > 600]
    inside += [manages(s["exp_avg"]) for p, s in optimizer.state.items() if p.numel() > 600]
    inside += [manages(p.grad) for p in model.parameters() if p.numel() > 600]
    other = torch.nn.utils.skip_init(torch.nn.Linear, 512, 512)
    torch.nn.init.zeros_(other.weight)
    another = torch.optim.Adam(other.parameters())
    other(torch.ones(2, 512)).sum().backward()
    another.step()
    outside = [other.weight, other.weight.grad, another.state[other.weight]["exp_avg"]]
    inside += [not manages(tensor) for tensor in outside]
    stats = handle.stats()
chunks = memory.client.stats().chunks
train(1)
with memtide.offload(model, optimizer):
    train(1)
print(digest())
print(json.dumps([all(inside), stats, chunks, runtime.current() is None]))
"""


def test_offloading_in_the_middle_gives_the_same_bits(cli: Cli, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain.py", tmp_path / "ours.py"
    plain.write_text(PLAIN, encoding="utf-8")
    ours.write_text(OFFLOADED, encoding="utf-8")
    expected = cli.python(plain).check().out
    digest, document = cli.python(ours).check().out.splitlines()
    assert digest == expected.strip()
    inside, stats, chunks_after, ended = json.loads(document)
    assert inside
    assert stats["iterations"] == 3  # One of them is the other model's.
    assert stats["kinds"]["parameter"]["allocated_bytes"] >= 8 * 512 * 512 * 4
    assert chunks_after == 0
    assert ended


def test_the_pools_of_offload_are_named_in_its_errors(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(
        "import torch, memtide\n"
        "try:\n"
        "    memtide.offload(torch.nn.Linear(4, 4), host_pool='huge')\n"
        "except memtide.UsageError as error:\n"
        "    print(error)\n",
        encoding="utf-8",
    )
    assert "'huge' is not a size" in cli.python(script).check().out


@pytest.mark.parametrize(("argument", "expected_mib"), [("", 8), (", chunk_size='2MiB'", 2)])
def test_offload_searches_the_size_of_chunks_unless_it_is_told(
    argument: str, expected_mib: int, cli: Cli, tmp_path: Path
) -> None:
    # Parameters fill one chunk of 8 MiB, gradients one and the states two: there is no waste.
    script = tmp_path / "searches.py"
    script.write_text(
        "import torch, memtide\n"
        "from memtide._torch_hooks import runtime\n"
        "layers = [torch.nn.Linear(1024, 512, bias=False) for _ in range(4)]\n"
        "model = torch.nn.Sequential(*layers)\n"
        f"memtide.offload(model, host_pool='256MiB', ssd_pool=0{argument})\n"
        "print(runtime.current().client.properties.chunk_bytes >> 20)\n",
        encoding="utf-8",
    )
    assert cli.python(script).check().out == f"{expected_mib}\n"


def test_the_package_offers_what_a_script_needs(cli: Cli) -> None:
    names = ["offload", "close", "activations", "Offloaded", "ResourceExhausted", "MemtideError"]
    cli.python(
        "-c",
        "import memtide\n"
        f"for name in {names}:\n"
        "    assert getattr(memtide, name) and name in memtide.__all__, name\n",
    ).check()


def test_importing_the_package_does_not_import_torch(cli: Cli) -> None:
    cli.python("-c", "import memtide, sys; assert 'torch' not in sys.modules").check()


def test_the_example_of_the_page_of_activations_runs(cli: Cli, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "activations.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    assert cli.python(script).check().out == "True\n"


CHOSEN = """
import torch, memtide
from memtide._torch_hooks import runtime
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
                              for _ in range(6)))
with memtide.offload(model, activations="move", {pools}):
    for _ in range(3):
        (model(torch.randn(512, 256)) * 2).exp().mean().backward()
    activations = runtime.current().activations
    print(activations.moved_bytes >= 3 * 6 * 512 * 256 * 4, activations.kept_bytes)
"""


@pytest.mark.parametrize(
    "pools",
    ["device_pool=0, host_pool='16MiB'", "device_pool='16MiB', host_pool='32MiB'"],
    ids=["host memory", "emulated device"],
)
def test_activations_move_to_where_the_chunks_are_without_a_budget(
    pools: str, cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "moves.py"
    script.write_text(CHOSEN.replace("{pools}", pools), encoding="utf-8")
    assert cli.python(script).check().out == "True 0\n"


MODELS = """
import gc, torch, memtide
from memtide._torch_hooks import runtime

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))

def optimizer_of(model):
    return torch.optim.AdamW(model.parameters())

def train(model, optimizer):
    for _ in range(3):
        loss = (model(torch.ones(4, 512)) - 0.1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), sum(p.double().sum().item() for p in model.parameters())

def manages(model):
    addresses = runtime.current().memory.addresses
    return [addresses.manages(p) for p in model.parameters() if p.nbytes > 4096]

POOLS = {"host_pool": "16MiB", "ssd_pool": "1GiB", "chunk_size": "2MiB"}
"""

# A cell that is run again, and one that was interrupted: no handle is kept.
CELLS = """
plain = network()
expected = train(plain, optimizer_of(plain))
for _ in range(3):
    model = network()
    optimizer = optimizer_of(model)
    memtide.offload(model, optimizer, **POOLS)
    assert train(model, optimizer) == expected
    live = runtime.current().memory.arenas.storages.live()
    try:
        model(torch.ones(4, 512)).sum().backward()
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        del model, optimizer
        gc.collect()
    print(len(live))
memtide.close()
assert runtime.current() is None
"""

TEACHER_AND_STUDENT = """
def run(offloads):
    models = network(), network()
    optimizers = tuple(map(optimizer_of, models))
    results, handles = [], []
    for each in zip(models, optimizers):
        if offloads:
            handles.append(memtide.offload(*each, **POOLS))
        results += [train(*pair) for pair in zip(models, optimizers)]
    if offloads:
        handles[0].close()
        assert not any(manages(models[0])) and all(manages(models[1]))
    results += [train(*pair) for pair in zip(models, optimizers)]
    if offloads:
        memtide.close()
        handles[1].close()
        memtide.close()
        assert runtime.current() is None
    return results + [train(*pair) for pair in zip(models, optimizers)]

assert run(True) == run(False)
"""


def test_a_cell_may_be_run_again_without_its_handle(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "cells.py"
    script.write_text(MODELS + CELLS, encoding="utf-8")
    tensors = cli.python(script).check().out.split()
    assert len(set(tensors)) == 1  # Models that were collected have left.


def test_models_come_and_go_by_themselves(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "models.py"
    script.write_text(MODELS + TEACHER_AND_STUDENT, encoding="utf-8")
    cli.python(script).check()


def test_what_offload_cannot_do_again_is_said(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        "import torch, memtide\n"
        "one, two = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)\n"
        "memtide.offload(one, host_pool='64MiB')\n"
        "try:\n"
        "    memtide.offload(two, activations='recompute')\n"
        "except memtide.UsageError as error:\n"
        "    print(error)\n",
        encoding="utf-8",
    )
    assert "call memtide.close() before" in cli.python(script).check().out
    script.write_text(
        "import torch, memtide\n"
        "memtide.offload(torch.nn.Linear(64, 64), host_pool='64MiB')\n"
        "memtide.close()\n"
        "memtide.offload(torch.nn.Linear(64, 64), host_pool=64 << 20)\n"
        "for sizes in ({'host_pool': '128MiB'}, {'ssd_pool': '1GiB'}):\n"
        "    try:\n"
        "        memtide.offload(torch.nn.Linear(64, 64), **sizes)\n"
        "    except memtide.UsageError as error:\n"
        "        print(error)\n",
        encoding="utf-8",
    )
    pool, ssd = cli.python(script).check().out.splitlines()
    assert pool.startswith("host_pool=128 MiB: this process's session began with 64.0 MiB, ")
    assert ssd.startswith("ssd_pool=1.00 GiB: this process's session began without one, ")
    managed = tmp_path / "managed.py"
    managed.write_text(
        "import torch, memtide\nmemtide.offload(torch.nn.Linear(64, 64))\n", encoding="utf-8"
    )
    outcome = cli.memtide("run", "--host-pool", "64MiB", managed)
    assert outcome.status == 1
    assert "leave out memtide.offload" in outcome.err
