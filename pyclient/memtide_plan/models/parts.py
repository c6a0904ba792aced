"""A model of a config.json as its layers and its ends, and what several architectures share."""

from __future__ import annotations

from dataclasses import dataclass

from memtide.errors import InvalidArgument

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.ends import Embedding, Head
from memtide_plan.models.layer import Layer, Matrix, Mlp, Norm

LAYER_NORM = Norm(bias=True)
SEQUENCES = "ForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A model, end to end."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    head: Head
    causal: bool = True
    longest_sequence: int
    sequence: int | None = None  # None: any. An image has one length, as its patches are tokens.


def plain_layer(
    config: ConfigFile,
    width: int,
    heads: int,
    mlp: Mlp,
    *,
    norms: str = "before",
    bias: bool = True,
    qkv_bias: bool = True,
    dropout: bool = False,
) -> Layer:
    """A layer with LayerNorms, and as many heads of keys as of queries."""
    return Layer(
        width=width,
        heads=heads,
        head_width=divided(config, width, heads),
        key_heads=heads,
        mlp=mlp,
        norm=LAYER_NORM,
        norms=norms,
        qkv_bias=bias and qkv_bias,
        out_bias=bias,
        dropout=dropout,
    )


def divided(config: ConfigFile, width: int, heads: int) -> int:
    """The width of a head, where the config.json does not say. InvalidArgument: there is none."""
    if width % heads and not config.has("head_dim"):
        raise InvalidArgument(f"'{config.path}': {heads} heads do not divide a width of {width}")
    return width // heads


def decoder_head(
    config: ConfigFile, width: int, norm: Norm, vocabulary: int, *, tied: bool = False
) -> Head:
    """The head after a decoder's layers. `tied`: where the config.json does not say."""
    task = config.task("ForCausalLM")
    if task == "Model":
        return Head(width=width, norm=norm)
    if task == SEQUENCES:
        labels = len(config.items("id2label")) or config.number("num_labels", default=2)
        return Head(width=width, norm=norm, others=labels * width)
    if task != "ForCausalLM":
        raise unknown_task(config, task)
    return Head(
        width=width,
        norm=norm,
        matrices=(Matrix(name="head", inputs=width, outputs=vocabulary),),
        vocabulary=vocabulary,
        tied=config.flag("tie_word_embeddings", default=tied),
    )


def unknown_task(config: ConfigFile, task: str) -> InvalidArgument:
    """The error of a model whose class ends in this."""
    return InvalidArgument(
        f"'{config.path}': a model of type {config.model_type} that ends in '{task}' is not known; "
        "name the script that trains it"
    )
