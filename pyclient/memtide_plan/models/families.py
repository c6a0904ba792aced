"""The architectures whose config.json is known, by their model_type."""

from __future__ import annotations

from collections.abc import Callable

from memtide.errors import InvalidArgument

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.encoders import bert, vit
from memtide_plan.models.parts import Parts
from memtide_plan.models.plain_decoders import gpt2, gpt_neox, opt
from memtide_plan.models.rotary import gemma, llama, mixtral, qwen3, qwen_moe, rotary

FAMILIES: dict[str, Callable[[ConfigFile], Parts]] = {
    "bert": bert,
    "gemma": gemma,
    "gemma2": gemma,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": rotary,
    "mixtral": mixtral,
    "opt": opt,
    "phi3": rotary,
    "qwen2": lambda config: rotary(config, qkv_bias=True),
    "qwen2_moe": qwen_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen_moe,
    "roberta": bert,
    "vit": vit,
}


def parts_of(config: ConfigFile) -> Parts:
    """InvalidArgument: the architecture, or its task, is not known, or a value is missing."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise InvalidArgument(
            f"'{config.path}': the architecture '{config.model_type}' is not known; those that "
            f"are: {', '.join(sorted(FAMILIES))} (or name the script that trains the model)"
        )
    return family(config)
