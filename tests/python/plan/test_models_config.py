"""A config.json gives the parameters that were published, and the bytes that torch saves."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memtide._plan_file.model import Block, Model
from memtide.errors import InvalidArgument
from memtide_plan.models.config import from_config
from memtide_plan.models.described import Options

_PLAIN = Options()
_LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
_GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
_BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
_QWEN_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
}


def _decoder(kind: str, width: int, inner: int, layers: int, heads: int, **more: Any) -> Any:
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 4096,
        **more,
    }


# The counts that the models' authors, or the pages of their weights, publish.
_PUBLISHED = {
    "Llama-3-8B": (_LLAMA_3_8B, 8_030_261_248),
    "Llama-2-7B": (_decoder("llama", 4096, 11008, 32, 32, vocab_size=32000), 6_738_415_616),
    "Mistral-7B": (
        _decoder("mistral", 4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=32000),
        7_241_732_096,
    ),
    "Qwen2.5-7B": (
        _decoder("qwen2", 3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=152064),
        7_615_616_512,
    ),
    "Qwen3-8B": (
        _decoder(
            "qwen3", 4096, 12288, 36, 32, num_key_value_heads=8, vocab_size=151936, head_dim=128
        ),
        8_190_735_360,
    ),
    "Gemma-7B": (
        _decoder("gemma", 3072, 24576, 28, 16, vocab_size=256000, head_dim=256),
        8_537_680_896,
    ),
    "Gemma-2-9B": (
        _decoder(
            "gemma2", 3584, 14336, 42, 16, vocab_size=256000, head_dim=256, num_key_value_heads=8
        ),
        9_241_705_984,
    ),
    "Phi-3-mini": (_decoder("phi3", 3072, 8192, 32, 32, vocab_size=32064), 3_821_079_552),
    "GPT-NeoX-20B": (
        _decoder("gpt_neox", 6144, 24576, 44, 64, vocab_size=50432),
        20_554_567_680,
    ),
    "GPT-2": (_GPT2, 124_439_808),
    "GPT-2 XL": ({**_GPT2, "n_embd": 1600, "n_head": 25, "n_layer": 48}, 1_557_611_200),
    "OPT-6.7B": (
        _decoder("opt", 4096, 1, 32, 32, ffn_dim=16384, vocab_size=50272)
        | {"max_position_embeddings": 2048},
        6_658_473_984,
    ),
    "OPT-350M": (
        _decoder("opt", 1024, 1, 24, 16, ffn_dim=4096, vocab_size=50272)
        | {"max_position_embeddings": 2048, "word_embed_proj_dim": 512}
        | {"do_layer_norm_before": False},
        331_196_416,
    ),
    "BERT-base": (_BERT, 109_482_240),
    "RoBERTa-base": (
        _BERT
        | {"model_type": "roberta", "vocab_size": 50265, "type_vocab_size": 1}
        | {"max_position_embeddings": 514},
        124_645_632,
    ),
    "ViT-B/16": (
        {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 16,
            "num_labels": 1000,
        },
        86_567_656,
    ),
    "Mixtral-8x7B": (
        _decoder("mixtral", 4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=32000)
        | {"num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "Qwen1.5-MoE-A2.7B": (_QWEN_MOE, 14_315_784_192),
    "Qwen3-30B-A3B": (
        _decoder("qwen3_moe", 2048, 6144, 48, 32, num_key_value_heads=4, vocab_size=151936)
        | {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
        | {"moe_intermediate_size": 768},
        30_532_122_624,
    ),
}


def _described(folder: Path, values: Any, options: Options = _PLAIN) -> Model:
    path = folder / "model.json"
    path.write_text(json.dumps(values))
    return from_config(path, options).model


def _layer(model: Model) -> Block:
    return next(block for block in model.blocks if block.name == "layers")


@pytest.mark.parametrize("name", _PUBLISHED)
def test_parameters_are_those_that_were_published(name: str, tmp_path: Path) -> None:
    values, published = _PUBLISHED[name]
    model = _described(tmp_path, values)
    assert model.parameters() == published
    assert model.trained_parameters() == published


@pytest.mark.parametrize(
    ("name", "kib"),
    [("Llama-3-8B", 84.13), ("Qwen3-8B", 76.29), ("GPT-2", 13.56), ("Qwen3-30B-A3B", 46.60)],
)
def test_layers_save_what_another_system_publishes(name: str, kib: float, tmp_path: Path) -> None:
    # The kernels of the system dataflow save as little. It publishes KiB of a layer and token (for
    # a mixture of experts, in two parts), without the layer's input, which it counts apart.
    values, _ = _PUBLISHED[name]
    values = values | {"resid_pdrop": 0}
    layer = _layer(_described(tmp_path, values, Options(kernels="fused")))
    saved = layer.saved_bytes_per_token() - layer.input_bytes_per_token
    assert saved / 1024 == pytest.approx(kib, abs=0.02)


def test_a_loss_in_pieces_has_all_logits_in_the_compute_type(tmp_path: Path) -> None:
    heads = [
        _described(tmp_path, _LLAMA_3_8B, Options(kernels=kernels)).blocks[-1]
        for kernels in ("torch", "pieces", "fused")
    ]
    whole, pieces, fused = (head.rest_bytes_per_token for head in heads)
    assert (whole - pieces, pieces - fused) == (2 * 128256, 2 * 128256)


def test_adapters_pass_memory_beside_their_products_unless_they_are_merged(tmp_path: Path) -> None:
    options = Options(lora_rank=8, lora_targets=("q", "down"))
    plain, merged = (
        _layer(_described(tmp_path, _LLAMA_3_8B, o))
        for o in (options, replace(options, lora_merged=True))
    )
    inputs, results = 4096 + 14336, 2 * 4096
    assert plain.beside_forward_bytes_per_token == 2 * 3 * results
    assert plain.beside_backward_bytes_per_token == 2 * (3 * inputs + 2 * results)
    assert merged.beside_forward_bytes_per_token == 0
    assert merged.beside_backward_bytes_per_token == 2 * 2 * (inputs + results)
    # The products are those of seven frozen matrices, and two for each adapter.
    assert [product.trained for product in plain.products] == [False] * 7 + [True] * 4
    assert (plain.products[7].outputs, plain.products[8].inputs) == (8, 8)
    assert len(merged.products) == 7


def test_plain_modules_pass_memory_for_each_operation(tmp_path: Path) -> None:
    torch, plain = (
        _layer(_described(tmp_path, _LLAMA_3_8B, Options(kernels=kernels)))
        for kernels in ("torch", "plain")
    )
    assert torch.beside_forward_bytes_per_token == 0
    # Two norms, and rotary embeddings of 32 heads of queries and 8 of keys.
    one_by_one = 2 * 16 * 4096 + 44 * 40 * 128
    assert plain.beside_forward_bytes_per_token == one_by_one
    assert plain.beside_backward_bytes_per_token == 2 * one_by_one


@pytest.mark.parametrize(
    ("rank", "norm", "mask"),
    # Bytes beside those in the compute type, for an element of the width: RMSNorms save inputs of
    # four bytes for two, trained ones also what they multiply; dropout has a mask for adapters.
    [(0, 2 + 4, 0), (8, 2, 1)],
)
def test_plain_modules_save_copies_of_norms_and_whole_products(
    rank: int, norm: int, mask: int, tmp_path: Path
) -> None:
    torch, plain = (
        _layer(
            _described(tmp_path, _LLAMA_3_8B, Options(kernels=kernels, lora_rank=rank))
        ).saved_bytes_per_token()
        for kernels in ("torch", "plain")
    )
    joint = 2 * (4096 + 1024)
    assert plain - torch == 2 * 4096 * norm + 4096 * mask + joint


def test_operations_are_those_of_matrices_and_of_attention(tmp_path: Path) -> None:
    model = _described(tmp_path, _LLAMA_3_8B)
    layer = _layer(model)
    norms = 2 * 4096
    assert layer.flop_per_token == 2 * (layer.parameters - norms)
    assert layer.flop_per_token_pair == 4 * 4096
    head = model.blocks[-1]
    assert head.flop_per_token == 2 * 4096 * 128256
    assert not head.recomputable


def test_a_tied_table_is_one_parameter_and_computes(tmp_path: Path) -> None:
    untied = _described(tmp_path, _GPT2 | {"tie_word_embeddings": False})
    tied = _described(tmp_path, _GPT2)
    assert untied.parameters() - tied.parameters() == 50257 * 768
    assert untied.blocks[-1].flop_per_token == tied.blocks[-1].flop_per_token == 2 * 50257 * 768


def test_experts_that_are_active_compute(tmp_path: Path) -> None:
    values, _ = _PUBLISHED["Mixtral-8x7B"]
    two = _layer(_described(tmp_path, values))
    three = _layer(_described(tmp_path, values | {"num_experts_per_tok": 3}))
    assert three.parameters == two.parameters
    assert three.flop_per_token - two.flop_per_token == 2 * 3 * 4096 * 14336


def test_layers_of_two_kinds_are_blocks_of_their_own_in_their_order(tmp_path: Path) -> None:
    model = _described(tmp_path, _QWEN_MOE | {"mlp_only_layers": [0, 23]})
    counts = [(block.name, block.count) for block in model.blocks[1:-1]]
    assert counts == [("layers 0", 1), ("layers 1", 22), ("layers 2", 1)]
    dense, sparse, last = model.blocks[1:-1]
    assert dense.parameters == last.parameters < sparse.parameters


def test_adapters_are_trained_and_nothing_else(tmp_path: Path) -> None:
    values, parameters = _PUBLISHED["Llama-2-7B"]
    options = Options(lora_rank=8, lora_targets=("q", "v"))
    model = _described(tmp_path, values, options)
    # PEFT prints this number of trainable parameters for Llama-2-7B with its defaults.
    assert model.trained_parameters() == 4_194_304
    assert model.parameters() == parameters + 4_194_304
    full, adapted = _layer(_described(tmp_path, values)), _layer(model)
    # Frozen matrices do not save their inputs: that of the Mlp, and that of "down".
    less = 2 * (4096 + 11008) - 2 * 2 * 8
    assert full.saved_bytes_per_token() - adapted.saved_bytes_per_token() == less
    assert adapted.flop_per_token - full.flop_per_token == 2 * 2 * 8 * 2 * 4096


def test_the_length_and_the_direction_of_attention(tmp_path: Path) -> None:
    assert _described(tmp_path, _LLAMA_3_8B).longest_sequence == 8192
    assert _described(tmp_path, _LLAMA_3_8B).causal
    assert not _described(tmp_path, _BERT).causal
    image = _described(tmp_path, _PUBLISHED["ViT-B/16"][0])
    assert (image.causal, image.longest_sequence) == (False, 14 * 14 + 1)


def test_a_window_of_attention_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    values = _PUBLISHED["Mistral-7B"][0] | {"max_position_embeddings": 32768}
    path.write_text(json.dumps(values | {"sliding_window": 4096}))
    assert any("4096 tokens" in note for note in from_config(path).notes)
    path.write_text(json.dumps(values | {"sliding_window": 4096, "use_sliding_window": False}))
    assert not from_config(path).notes


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"hidden_size": 64}, 'it has no "model_type"'),
        ({"model_type": "mamba"}, "the architecture 'mamba' is not known; .*llama"),
        ({**_LLAMA_3_8B, "hidden_size": "4096"}, "\"hidden_size\" is '4096', not a count"),
        ({**_LLAMA_3_8B, "num_hidden_layers": 0}, '"num_hidden_layers" is 0'),
        ({**_LLAMA_3_8B, "num_hidden_layers": True}, '"num_hidden_layers" is True'),
        ({**_LLAMA_3_8B, "vocab_size": None}, 'has no "vocab_size", which .* llama has'),
        ({**_LLAMA_3_8B, "num_attention_heads": 33}, "33 heads do not divide a width of 4096"),
        (_BERT | {"architectures": ["BertForTokenClassification"]}, "ForTokenClassification"),
        (_QWEN_MOE | {"num_experts_per_tok": 61}, "61 experts .* of 60"),
        (_GPT2 | {"embd_pdrop": 7}, "is 7, not from 0 to 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(values: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=error) as raised:
        _described(tmp_path, values)
    assert "\n" not in str(raised.value)
    assert "model.json" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (Options(kernels="best"), "kernels 'best': they are torch, fused, plain"),
        (Options(compute_type="int4"), "compute type 'int4': the known ones are bfloat16"),
        (Options(lora_rank=-1), "is -1"),
        (Options(lora_rank=4, lora_targets=("q", "qq")), "adapters of 'qq': .* q, k, v, o"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(
    options: Options, error: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        _described(tmp_path, _LLAMA_3_8B, options)


def test_a_config_is_read_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_LLAMA_3_8B))
    program = (
        "import sys; from pathlib import Path; from memtide_plan.models.config import from_config;"
        "print(from_config(Path(sys.argv[1])).model.parameters(), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["8030261248", "False"]
