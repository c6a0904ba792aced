"""memtide's own optimizers. They train bf16 and fp16 parameters without losing small updates."""

from memtide.optim._adamw import AdamW
from memtide.optim._lion import Lion

__all__ = ["AdamW", "Lion"]
