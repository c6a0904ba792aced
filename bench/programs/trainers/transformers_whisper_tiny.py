"""Fine-tunes a speech model as transformers' run_speech_recognition_seq2seq.py does."""

from __future__ import annotations

import tempfile

import torch
from printing import SETTINGS, printing
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

WORDS, FRAMES = 512, 100


class Speech(torch.utils.data.Dataset):
    """Spectrograms of noise, and random words."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        return {
            "input_features": torch.randn(80, FRAMES, generator=random),
            "labels": torch.randint(10, WORDS, (12,), generator=random),
        }


set_seed(0)
config = WhisperConfig(
    vocab_size=WORDS,
    d_model=192,
    encoder_layers=3,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=512,
    decoder_ffn_dim=512,
    max_source_positions=FRAMES // 2,
    max_target_positions=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=3,
    begin_suppress_tokens=None,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = Seq2SeqTrainingArguments(
        folder,
        max_steps=8,
        per_device_train_batch_size=4,
        gradient_checkpointing=True,
        **SETTINGS,
    )
    model = WhisperForConditionalGeneration(config)
    printing(Seq2SeqTrainer)(model=model, args=arguments, train_dataset=Speech()).train()
