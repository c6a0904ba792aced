"""Trains sentence embeddings on pairs with sentence-transformers' trainer, as its examples do."""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from printing import SETTINGS, printing, text, tokenizer
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, set_seed

WORDS = 2048

set_seed(0)
random = torch.Generator().manual_seed(0)
names = ("anchor", "positive")
pairs = Dataset.from_dict({name: [text(random, 16) for _ in range(64)] for name in names})
config = BertConfig(
    vocab_size=WORDS,
    hidden_size=192,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
    pad_token_id=1,
)
with tempfile.TemporaryDirectory() as folder:
    BertModel(config).save_pretrained(f"{folder}/bert")
    tokenizer(WORDS).save_pretrained(f"{folder}/bert")
    words = Transformer(f"{folder}/bert", max_seq_length=32)
    model = SentenceTransformer(modules=[words, Pooling(192)], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        folder,
        max_steps=8,
        per_device_train_batch_size=8,
        **SETTINGS,
    )
    loss = MultipleNegativesRankingLoss(model)
    printing(SentenceTransformerTrainer)(
        model=model, args=arguments, train_dataset=pairs, loss=loss
    ).train()
