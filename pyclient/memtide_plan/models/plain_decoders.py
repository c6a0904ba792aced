"""Decoders with LayerNorm and an Mlp of two matrices: GPT-2, GPT-NeoX and OPT."""

from __future__ import annotations

from dataclasses import replace

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.ends import Embedding
from memtide_plan.models.layer import Matrix, Mlp
from memtide_plan.models.parts import (
    LAYER_NORM,
    SEQUENCES,
    Parts,
    decoder_head,
    plain_layer,
    unknown_task,
)


def gpt2(config: ConfigFile) -> Parts:
    """GPT-2."""
    width, heads = config.number("n_embd"), config.number("n_head")
    layer = plain_layer(
        config,
        width,
        heads,
        Mlp(inner=config.number("n_inner", default=4 * width), gated=False, bias=True),
        dropout=config.share("resid_pdrop", default=0.1) > 0,
    )
    vocabulary, positions = config.number("vocab_size"), config.number("n_positions", "n_ctx")
    return Parts(
        embedding=Embedding(
            width=width,
            tables=(vocabulary + positions) * width,
            dropout=config.share("embd_pdrop", default=0.1) > 0,
        ),
        layers=(layer,) * config.number("n_layer"),
        head=decoder_head(config, width, LAYER_NORM, vocabulary, tied=True),
        longest_sequence=positions,
    )


def gpt_neox(config: ConfigFile) -> Parts:
    """GPT-NeoX and Pythia."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    layer = plain_layer(
        config,
        width,
        heads,
        Mlp(inner=config.number("intermediate_size"), gated=False, bias=True),
        norms="parallel" if config.flag("use_parallel_residual", default=True) else "before",
        bias=config.flag("attention_bias", default=True),
        dropout=config.share("hidden_dropout", default=0.0) > 0,
    )
    vocabulary = config.number("vocab_size")
    return Parts(
        embedding=Embedding(width=width, tables=vocabulary * width),
        layers=(layer,) * config.number("num_hidden_layers"),
        head=decoder_head(config, width, LAYER_NORM, vocabulary),
        longest_sequence=config.number("max_position_embeddings"),
    )


def opt(config: ConfigFile) -> Parts:
    """OPT. The smallest ones have norms after attention and Mlp."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    bias = config.flag("enable_bias", default=True)
    is_before = config.flag("do_layer_norm_before", default=True)
    relu = config.text("activation_function", default="relu") == "relu"
    dropout = config.share("dropout", default=0.1) > 0
    layer = plain_layer(
        config,
        width,
        heads,
        Mlp(inner=config.number("ffn_dim"), gated=False, relu=relu, bias=bias),
        norms="before" if is_before else "after",
        bias=bias,
        dropout=dropout,
    )
    vocabulary, positions = config.number("vocab_size"), config.number("max_position_embeddings")
    narrow = config.number("word_embed_proj_dim", default=width)
    projections = (("in", narrow, width), ("out", width, narrow)) if narrow != width else ()
    matrices = [Matrix(name=n, inputs=i, outputs=o) for n, i, o in projections]
    head = decoder_head(config, width, LAYER_NORM, vocabulary, tied=True)
    if head.vocabulary:
        last = Matrix(name="head", inputs=narrow, outputs=vocabulary)
        head = replace(head, matrices=(*matrices[1:], last))
    elif head.others:
        raise unknown_task(config, SEQUENCES)
    else:
        head = replace(head, matrices=tuple(matrices[1:]))
    return Parts(
        # OPT's first two positions are never used, but its table has them.
        embedding=Embedding(
            width=width,
            tables=vocabulary * narrow + (positions + 2) * width,
            matrices=tuple(matrices[:1]),
        ),
        layers=(layer,) * config.number("num_hidden_layers"),
        head=head if is_before else replace(head, norm=None),
        longest_sequence=positions,
    )
