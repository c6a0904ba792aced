"""Plans in files: what is written is read, and what is no plan is refused with its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plans
import pytest
from memtide._plan_file import plan_file
from memtide.errors import InvalidArgument

_DEEP = "[" * 100_000


def _set(*keys: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def _load(folder: Path, text: str) -> plan_file.Plan:
    path = folder / "plan.json"
    path.write_text(text, encoding="utf-8")
    return plan_file.load(path)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    planned = plans.planned(("keep", "move", "recompute", "keep"))
    plan = _load(tmp_path, plan_file.dumps(planned))
    assert (plan.model, plan.training, plan.machine, plan.answer) == (
        planned.model,
        planned.training,
        planned.machine,
        planned.answer,
    )
    assert plan.repeated_activations() == ("keep", "move", "recompute", "keep")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("format", to=0), "is of another release of memtide"),
        (_set("question", to=None), "'question' has no model"),
        (_set("question", "model", to=[]), "model is no object with the fields of a Model"),
        (_set("question", "model", "blocks", 0, "count", to=1e3), "'count' is 1000.0"),
        (_set("question", "machine", "devices", to=0), "'devices' is 0"),
        (_set("question", "training", "states", "weight", to=-2), "'weight' is -2"),
        (_set("answer", "moved_bytes", "to_device", to=float("nan")), "'to_device' is nan"),
        (_set("answer", "moved_bytes", "drive_read", to=10**400), "'drive_read' is 1000"),
        (_set("answer", "moved_bytes", to={"to_device": "much"}), "'to_device' is 'much'"),
        (_set("answer", "choice", to=None), "'choice' is missing"),
        (_set("answer", "choice", "chunk_bytes", to=0), "'chunk_bytes' is 0"),
        (_set("answer", "choice", "chunk_bytes", to=True), "'chunk_bytes' is True"),
        (_set("answer", "choice", "activations", 0, to="burn"), "does not 'burn'"),
        (_set("answer", "choice", "activations", to=["keep"]), "of 1 blocks, and the model has 6"),
        (_set("answer", "drive_bytes_written", to=1.0), "has no 'drive_bytes_written'"),
    ],
)
def test_a_file_that_is_no_plan_names_the_field(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    document = json.loads(plan_file.dumps(plans.planned()))
    change(document)
    with pytest.raises(InvalidArgument, match=message):
        _load(tmp_path, json.dumps(document))


@pytest.mark.parametrize("text", ["no JSON", _DEEP, "[]", "3", '{"format": 1}'])
def test_what_is_no_document_is_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"is not JSON|is no plan") as error:
        _load(tmp_path, text)
    assert len(str(error.value)) < 300
