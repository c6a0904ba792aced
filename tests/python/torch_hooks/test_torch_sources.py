"""Another torch is compared with the table of patches by its sources alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_sources
from memtide._torch_hooks.patching import patches
from torch_sources import TorchSources

INSTALLED = Path(torch.__file__).parents[1]
VERSION = patches.version_of(torch.__version__)


def test_the_sources_of_this_torch_have_what_it_has() -> None:
    assert list(torch_sources.differences(INSTALLED, VERSION)) == []


def test_the_sources_say_whether_code_is_compiled_on_a_gpu(sources: TorchSources) -> None:
    assert torch_sources.compiles(INSTALLED) == patches.can_compile() is True
    assert not torch_sources.compiles(sources.folder)


def test_what_has_gone_or_come_is_a_difference() -> None:
    found = set(torch_sources.differences(INSTALLED, (2, 6)))
    assert found == {
        "torch.optim.adamw._multi_tensor_adamw is not there",
        "torch.optim.adamw._fused_adamw is not there",
    }
    found = set(torch_sources.differences(INSTALLED, (2, 5)))
    assert any(line.endswith("foreach_all_gather is there") for line in found)


@pytest.fixture
def sources(tmp_path: Path) -> TorchSources:
    """A package in which names come from elsewhere in every way."""
    files = {
        "torch/__init__.py": "from torch.a import *\nfrom .b import g as h\nif x:\n    y = 1\n",
        "torch/a.py": "from torch._C import Base\nclass A(Base): pass\ndef f(): pass\n",
        "torch/b/__init__.py": "from .c import g\nimport torch.a\nclass B(torch.a.A): d: int\n",
        "torch/b/c.py": "try:\n    def g(): pass\nexcept ImportError:\n    pass\n",
        "torch/_C.pyi": "class Base:\n    def mul_(self): ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return TorchSources(tmp_path)


@pytest.mark.parametrize(
    ("owner", "name", "is_there"),
    [
        ("torch", "f", True),
        ("torch", "h", True),
        ("torch", "y", True),
        ("torch", "b", True),
        ("torch", "g", False),
        ("torch.b", "g", True),
        ("torch:A", "mul_", True),
        ("torch.b:B", "mul_", True),
        ("torch.b:B", "d", True),
        ("torch.b:B", "e", False),
        ("torch.b:C", "mul_", False),
        ("torch.d", "f", False),
    ],
)
def test_names_are_followed(sources: TorchSources, owner: str, name: str, is_there: bool) -> None:
    assert sources.has(owner, name) is is_there
