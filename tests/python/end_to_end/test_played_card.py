"""Cards that the fake GPU plays (base/cuda/fake/card.h): the product is real, and no bytes move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import REPOSITORY, Cli

_STEPS, _LAYERS = 3, 4


def test_a_script_trains_in_a_quarter_on_a_card_that_is_played(
    cli: Cli, fake_device: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MEMTIDE_PROTECT", raising=False)
    card = REPOSITORY / "base" / "cuda" / "fake" / "cards" / "h100"
    settings = f"{fake_device['MEMTIDE_FAKE_CUDA']},memory=4GiB,card={card}"
    shape = f"--layers {_LAYERS} --width 1024 --context 64 --phases 1 --steps {_STEPS}"
    cli.memtide(
        *("run", "--quiet", "--device=cuda", "--device-pool=192MiB", "--host-pool=896MiB"),
        *("--ssd-pool=0", "--chunk-size=16MiB", f"--stats={tmp_path / 'stats'}"),
        str(REPOSITORY / "bench" / "gpu_model" / "played_script.py"),
        *(*shape.split(), "--device=fakegpu", "--dtype=float32", f"--log={tmp_path / 'log'}"),
        **{**fake_device, "MEMTIDE_FAKE_CUDA": settings},
    ).check()
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == _STEPS
    stats = json.loads((tmp_path / "stats").read_text(encoding="utf-8"))
    assert stats["moved_bytes"]["host_to_device_bytes"] > 0
    assert stats["client"]["maps"] > stats["chunks"]
    assert stats["hooks"]["gradients"] == _STEPS * (12 * _LAYERS + 5)
