"""A kernel past torch's dispatcher, over chunks that memtide.hold keeps on a fake GPU."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli, Outcome

pytestmark = pytest.mark.usefixtures("gpu")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_HOLD = "with memtide.hold(first, write=True):"


@pytest.fixture(scope="module")
def example() -> str:
    """The one in docs/kernels.md that needs no Triton."""
    page = (REPOSITORY / "docs" / "kernels.md").read_text(encoding="utf-8")
    (code,) = (block for block in _BLOCK.findall(page) if "ctypes" in block)
    assert _HOLD in code
    return code


def run(cli: Cli, folder: Path, code: str) -> Outcome:
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    return cli.memtide(
        *("run", "--quiet", "--device=cuda", "--device-pool=16MiB", "--host-pool=96MiB"),
        *(f"--ssd-dir={folder}", script),
    )


def test_the_example_of_the_documents_runs(cli: Cli, tmp_path: Path, example: str) -> None:
    assert run(cli, tmp_path, example).check().out == "0\n"


def test_without_memtide_it_gives_the_same(cli: Cli, tmp_path: Path, example: str) -> None:
    assert cli.python("-c", example).check().out == "0\n"


def test_a_kernel_over_a_chunk_that_is_not_held_ends_the_process(
    cli: Cli, tmp_path: Path, example: str
) -> None:
    outcome = run(cli, tmp_path, example.replace(_HOLD, "if True:"))
    assert outcome.status in (-signal.SIGSEGV, 128 + signal.SIGSEGV)


def test_a_write_under_a_hold_for_reading_ends_it_where_chunks_are_protected(
    cli: Cli, tmp_path: Path, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMTIDE_PROTECT", "1")
    outcome = run(cli, tmp_path, example.replace(", write=True", ""))
    assert outcome.status in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
