"""Something new in a script puts back protection: an access without a lease ends the process again,
where it found other bytes in what the script repeats."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from harness import Cli, Outcome

_ITERATIONS = 8  # In the script, too.
# `new` is run in the sixth iteration. The first layer's chunk has left before the last one runs.
_SCRIPT = """
import ctypes, sys
import torch
from torch import nn

class Doubling(nn.Module):
    def forward(self, x):
        return x + x

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(16)))
spare = nn.Linear(1024, 1024, bias=False)
optimizer = torch.optim.SGD([*model.parameters()], lr=1e-3)
first = model[0].weight
for iteration in range(8):
    x = torch.ones(2, 1024)
    y = model(x)
    if iteration == 5:
        {new}
        {access}
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
_NEW = {
    "operation": "y = torch.erf(y)",
    "module": "y = y + spare(x)",
    "class": "y = Doubling()(y)",
    "shape": "y = model[8:](x[:1])",
    "mode": "y = model[8:].eval()(x)",
}
# `ctypes` stands for a kernel past torch's dispatcher.
_ACCESS = "ctypes.string_at(first.data_ptr(), 1)"


@pytest.fixture(autouse=True)
def _keeping_mappings(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del gpu
    monkeypatch.delenv("MEMTIDE_PROTECT", raising=False)


def _run(cli: Cli, folder: Path, new: str, access: str) -> Outcome:
    script = folder / "novel.py"
    script.write_text(_SCRIPT.format(new=new, access=access), encoding="utf-8")
    return cli.memtide(
        *("run", "--device=cuda", "--device-pool=16MiB", "--host-pool=160MiB"),
        *(f"--ssd-dir={folder}", f"--stats={folder}/stats.json", script),
    )


@pytest.mark.parametrize("new", _NEW.values(), ids=_NEW)
def test_an_access_without_a_lease_is_fatal_beside_something_new(
    cli: Cli, tmp_path: Path, new: str
) -> None:
    outcome = _run(cli, tmp_path, new, _ACCESS)
    assert outcome.status in (-signal.SIGSEGV, 128 + signal.SIGSEGV), outcome.err


@pytest.mark.parametrize(
    ("new", "access", "protected"),
    [("y = model(x)", _ACCESS, 2), (_NEW["operation"], "pass", 4)],
    ids=["repetition, which survives the access", "operation"],
)
def test_the_summary_counts_protected_iterations(
    cli: Cli, tmp_path: Path, new: str, access: str, protected: int
) -> None:
    outcome = _run(cli, tmp_path, new, access).check()
    stats = json.loads((tmp_path / "stats.json").read_text(encoding="utf-8"))
    assert stats["client"]["protected_iterations"] == protected
    assert f"{protected} of {_ITERATIONS} iterations protected" in outcome.err
