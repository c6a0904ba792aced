"""Models of libraries train to the same bits while their activations move or are recomputed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Cli
from reference_runs import ReferenceRuns

SCRIPTS = Path(__file__).resolve().parent / "activations"


@pytest.mark.parametrize("choice", ["move", "recompute"])
@pytest.mark.parametrize("name", ["llama_lora", "gpt2"])
def test_a_library_s_model_trains_to_the_same_bits(
    name: str, choice: str, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    script, result = SCRIPTS / f"{name}.py", tmp_path / "result"
    plain = json.loads(reference_runs.result(script).read_text(encoding="utf-8"))
    cli.python(script, RESULT=result, CHOICE=choice).check()
    ours = json.loads(result.read_text(encoding="utf-8"))
    assert ours["result"] == plain["result"]
    activations = ours["activations"]
    if choice == "move":
        assert activations["moved_bytes"] > 5 * 2**20
    else:
        assert activations["recomputed_blocks"] == activations["blocks"] == 4
        assert activations["blocks_left_alone"] == {}
