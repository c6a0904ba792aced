"""Encoders: BERT, RoBERTa and ViT."""

from __future__ import annotations

from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.ends import Embedding, Head
from memtide_plan.models.layer import Matrix, Mlp
from memtide_plan.models.parts import LAYER_NORM, SEQUENCES, Parts, plain_layer, unknown_task


def bert(config: ConfigFile) -> Parts:
    """BERT and RoBERTa."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    dropout = config.share("hidden_dropout_prob", default=0.1) > 0
    mlp = Mlp(inner=config.number("intermediate_size"), gated=False, bias=True)
    layer = plain_layer(config, width, heads, mlp, norms="after", dropout=dropout)
    vocabulary, positions = config.number("vocab_size"), config.number("max_position_embeddings")
    tables = vocabulary + positions + config.number("type_vocab_size", default=2)
    is_roberta = config.model_type == "roberta"
    return Parts(
        embedding=Embedding(width=width, tables=tables * width, norm=LAYER_NORM, dropout=dropout),
        layers=(layer,) * config.number("num_hidden_layers"),
        head=_encoder_head(config, width, vocabulary, has_pooler=not is_roberta),
        causal=False,
        # The two first positions of RoBERTa's table are for padding.
        longest_sequence=positions - 2 * is_roberta,
    )


def _encoder_head(config: ConfigFile, width: int, vocabulary: int, *, has_pooler: bool) -> Head:
    task = config.task("ForMaskedLM")
    pooler = width * (width + 1)
    labels = len(config.items("id2label")) or config.number("num_labels", default=2)
    if task in ("ForMaskedLM", "ForPreTraining"):
        both = task == "ForPreTraining" and has_pooler
        return Head(
            width=width,
            matrices=(
                Matrix(name="transform", inputs=width, outputs=width, bias=True),
                Matrix(name="head", inputs=width, outputs=vocabulary, bias=True),
            ),
            between=LAYER_NORM,
            vocabulary=vocabulary,
            tied=True,
            others=pooler + 2 * (width + 1) if both else 0,
        )
    if task == "Model":
        return Head(width=width, others=pooler)
    if task == SEQUENCES:
        return Head(width=width, others=pooler + labels * (width + 1))
    raise unknown_task(config, task)


def vit(config: ConfigFile) -> Parts:
    """ViT: the patches of an image are its tokens."""
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    mlp = Mlp(inner=config.number("intermediate_size"), gated=False, bias=True)
    dropout = config.share("hidden_dropout_prob", default=0.0) > 0
    qkv_bias = config.flag("qkv_bias", default=True)
    layer = plain_layer(config, width, heads, mlp, dropout=dropout, qkv_bias=qkv_bias)
    side, patch = config.number("image_size", default=224), config.number("patch_size", default=16)
    values = config.number("num_channels", default=3) * patch * patch
    tokens = (side // patch) ** 2 + 1  # The first one is the class's.
    task = config.task("ForImageClassification")
    if task not in ("ForImageClassification", "Model"):
        raise unknown_task(config, task)
    labels = len(config.items("id2label")) or config.number("num_labels", default=2)
    return Parts(
        embedding=Embedding(
            width=width,
            tables=(tokens + 1) * width,
            matrices=(Matrix(name="patches", inputs=values, outputs=width, bias=True),),
            dropout=dropout,
            input_bytes_per_token=4 * values,
        ),
        layers=(layer,) * config.number("num_hidden_layers"),
        head=Head(
            width=width,
            norm=LAYER_NORM,
            others=(width if task == "Model" else labels) * (width + 1),
        ),
        causal=False,
        longest_sequence=tokens,
        sequence=tokens,
    )
