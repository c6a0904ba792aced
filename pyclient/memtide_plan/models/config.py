"""A model from its Hugging Face config.json. Torch is not imported.

Parameters are exact. Options.kernels says which tensors a layer saves for its backward pass; in a
mixture of experts all experts are parameters, and those that compute for a token count in its
operations and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from memtide._plan_file.model import Block, Model
from memtide.errors import InvalidArgument

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.described import DEFAULTS, Described, Options
from memtide_plan.models.families import parts_of
from memtide_plan.models.layer import Layer, Saving
from memtide_plan.models.parts import Parts


def from_config(path: Path, options: Options = DEFAULTS) -> Described:
    """The model of a config.json. InvalidArgument: it cannot be read, its architecture is not
    known, or an option does not suit it."""
    return described_by(ConfigFile(path), options)


def described_by(config: ConfigFile, options: Options = DEFAULTS) -> Described:
    """The same of one that has been read."""
    parts = parts_of(config)
    _check_adapters(parts, options)
    saving = Saving(
        element_bytes=options.element_bytes(),
        fused=options.kernels == "fused",
        plain=options.kernels == "plain",
        in_pieces=options.kernels == "pieces",
        lora_rank=options.lora_rank,
        lora_targets=options.lora_targets,
        lora_merged=options.lora_merged,
    )
    model = Model(
        name=config.name(),
        blocks=(
            parts.embedding.block(saving),
            *_layers(parts.layers, saving),
            parts.head.block(saving),
        ),
        causal=parts.causal,
        longest_sequence=parts.longest_sequence,
    )
    return Described(
        model=model,
        sequence=parts.sequence,
        compute_type=options.compute_type,
        notes=tuple(_notes(config, parts)),
    )


def _layers(layers: tuple[Layer, ...], saving: Saving) -> Iterator[Block]:
    """Equal layers in a row are one block."""
    rows = [(layer, len(list(row))) for layer, row in groupby(layers)]
    for number, (layer, count) in enumerate(rows):
        yield layer.block("layers" if len(rows) == 1 else f"layers {number}", count, saving)


def _check_adapters(parts: Parts, options: Options) -> None:
    if options.lora_rank < 0:
        raise InvalidArgument(f"the rank of adapters is {options.lora_rank}: it is at least 0")
    if not options.lora_rank:
        return
    names = {matrix.name: None for layer in parts.layers for matrix in layer.matrices()}
    # The three of a gated Mlp are in the defaults, also where a model has two.
    unknown = [n for n in options.lora_targets if n not in {*names, "gate"}]
    if unknown or not any(name in names for name in options.lora_targets):
        raise InvalidArgument(
            f"adapters of '{', '.join(unknown)}': the matrices of a layer are {', '.join(names)}"
        )


def _notes(config: ConfigFile, parts: Parts) -> Iterator[str]:
    window = config.number("sliding_window") if _slides(config) else parts.longest_sequence
    if window < parts.longest_sequence:
        yield (
            f"Layers that attend to the last {window} tokens alone are counted as if they attended "
            "to all: with longer sequences the model is faster than predicted."
        )
    if any(layer.experts for layer in parts.layers):
        yield "All experts are parameters; those that are active compute."
    if config.has("quantization_config"):
        yield "The quantization in the config.json is not applied."


def _slides(config: ConfigFile) -> bool:
    return config.has("sliding_window") and config.flag("use_sliding_window", default=True)
