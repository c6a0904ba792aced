"""Decoders in the manner of Llama: rotary positions, RMSNorm and a gated Mlp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memtide.errors import InvalidArgument

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.ends import Embedding
from memtide_plan.models.layer import Experts, Layer, Mlp, Norm
from memtide_plan.models.parts import Parts, decoder_head, divided


def rotary(
    config: ConfigFile,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: bool = False,
    norms: str = "before",
    tied: bool = False,
    layers: Callable[[ConfigFile, Layer], tuple[Layer, ...]] | None = None,
) -> Parts:
    """Decoders in the manner of Llama: rotary positions, RMSNorm and a gated Mlp."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    layer = Layer(
        width=width,
        heads=heads,
        head_width=config.number("head_dim", default=divided(config, width, heads)),
        key_heads=config.number("num_key_value_heads", default=heads),
        mlp=Mlp(inner=config.number("intermediate_size"), bias=mlp_bias),
        norms=norms,
        head_norms=head_norms,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )
    count = config.number("num_hidden_layers")
    vocabulary = config.number("vocab_size")
    return Parts(
        embedding=Embedding(width=width, tables=vocabulary * width),
        layers=layers(config, layer) if layers else (layer,) * count,
        head=decoder_head(config, width, Norm(), vocabulary, tied=tied),
        longest_sequence=config.number("max_position_embeddings"),
    )


def llama(config: ConfigFile) -> Parts:
    """Llama, with the biases that its config.json names."""
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    return rotary(config, qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def qwen3(config: ConfigFile) -> Parts:
    """Qwen3: each head of queries and keys has a norm."""
    bias = config.flag("attention_bias", default=False)
    return rotary(config, qkv_bias=bias, out_bias=bias, head_norms=True)


def gemma(config: ConfigFile) -> Parts:
    """Gemma, and Gemma 2 with norms before and after attention and Mlp."""
    bias = config.flag("attention_bias", default=False)
    norms = "both" if config.model_type == "gemma2" else "before"
    return rotary(config, qkv_bias=bias, out_bias=bias, norms=norms, tied=True)


def mixtral(config: ConfigFile) -> Parts:
    """Mixtral: each layer has experts."""

    def layers(config: ConfigFile, layer: Layer) -> tuple[Layer, ...]:
        experts = _experts(config, "num_local_experts")
        return (_with(layer, layer.mlp, experts),) * config.number("num_hidden_layers")

    return rotary(config, layers=layers)


def qwen_moe(config: ConfigFile) -> Parts:
    """Qwen2-MoE, with an expert that all tokens share, and Qwen3-MoE; some layers have one Mlp."""
    is_second = config.model_type == "qwen2_moe"

    def layers(config: ConfigFile, layer: Layer) -> tuple[Layer, ...]:
        shared = config.number("shared_expert_intermediate_size") if is_second else 0
        experts = _experts(config, "num_experts", "num_local_experts", shared_inner=shared)
        sparse = _with(layer, Mlp(inner=config.number("moe_intermediate_size")), experts)
        step, dense = config.number("decoder_sparse_step", default=1), config.items(
            "mlp_only_layers"
        )
        return tuple(
            layer if number in dense or (number + 1) % step else sparse
            for number in range(config.number("num_hidden_layers"))
        )

    bias = config.flag("attention_bias", default=False)
    return rotary(
        config,
        qkv_bias=config.flag("qkv_bias", default=True) if is_second else bias,
        out_bias=not is_second and bias,
        head_norms=not is_second,
        layers=layers,
    )


def _experts(config: ConfigFile, *names: str, shared_inner: int = 0) -> Experts:
    count, active = config.number(*names), config.number("num_experts_per_tok")
    if active > count:
        raise InvalidArgument(
            f"'{config.path}': a token has {active} experts (\"num_experts_per_tok\") of {count}"
        )
    return Experts(count=count, active=active, shared_inner=shared_inner)


def _with(layer: Layer, mlp: Mlp, experts: Experts) -> Layer:
    return replace(layer, mlp=mlp, experts=experts)
