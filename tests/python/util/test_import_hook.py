"""Something is called when a module is imported, however a script comes to import it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from memtide._util.import_hook import after_import

_NAME = "imported_only_in_this_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / f"{_NAME}.py").write_text("value = 7\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield _NAME
    sys.modules.pop(_NAME, None)
    assert sys.meta_path == finders  # Calls that are made, or cancelled, leave nothing behind.


def test_a_module_that_is_first_looked_for_calls_once_when_it_is_imported(module: str) -> None:
    called: list[int] = []
    after_import(module, lambda: called.append(sys.modules[module].value))
    # Transformers, PEFT and others ask so whether torch is there.
    for _ in range(2):
        assert importlib.util.find_spec(module) is not None
    assert not called
    assert importlib.import_module(module).value == 7
    assert importlib.import_module(module).__spec__.name == module
    assert called == [7]


def test_a_module_whose_import_fails_calls_when_it_succeeds(module: str, tmp_path: Path) -> None:
    called: list[str] = []
    after_import(module, lambda: called.append(module))
    source = tmp_path / f"{module}.py"
    source.write_text("raise ValueError('not yet')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module(module)
    assert not called
    source.write_text("value = 7  # And more text: Python compares sizes.\n", encoding="utf-8")
    importlib.import_module(module)
    assert called == [module]


def test_what_is_cancelled_is_not_called(module: str) -> None:
    called: list[str] = []
    cancel = after_import(module, lambda: called.append(module))
    assert importlib.util.find_spec(module) is not None
    cancel()
    importlib.import_module(module)
    assert not called
