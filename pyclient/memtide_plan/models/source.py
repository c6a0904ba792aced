"""Which reader a model's source has."""

from __future__ import annotations

from pathlib import Path

from memtide._trace.files import RAW_SUFFIX
from memtide.errors import InvalidArgument

from memtide_plan.models.config import from_config
from memtide_plan.models.described import DEFAULTS, Described, Options
from memtide_plan.models.script import from_script
from memtide_plan.models.trace import from_trace


def model_of(source: str, options: Options = DEFAULTS) -> Described:
    """The model of a config.json (any name that ends in .json, or a folder that has one), of a
    script (.py) or of a trace (.trace.gz). InvalidArgument: there is no such file, its name ends in
    none of these, or its reader refuses it."""
    path = Path(source)
    if (path / "config.json").is_file():
        path = path / "config.json"
    readers = {".json": from_config, RAW_SUFFIX: from_trace, ".py": from_script}
    reader = next((read for end, read in readers.items() if path.name.endswith(end)), None)
    if reader is None:
        raise InvalidArgument(
            f"'{source}' is no model: name a Hugging Face config.json (*.json), a script that "
            f"trains it (*.py) or the trace of a run (*{RAW_SUFFIX})"
        )
    if not path.is_file():
        raise InvalidArgument(f"there is no file '{path}'")
    if options.lora_rank and reader is not from_config:
        raise InvalidArgument(
            f"adapters are an option of a config.json: '{source}' has those that it trains itself"
        )
    return reader(path, options)
