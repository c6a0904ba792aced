"""Prints what a run is compared by: each loss to the last digit with its moment, and whose step."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Trainer


def loss(value: torch.Tensor | float) -> None:
    print(f"loss {float(value)!r} at {time.monotonic()!r}", flush=True)


def optimizer(found: Any) -> None:
    """Prints the class whose `step` is called, without wrappers."""
    while isinstance(inner := getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = inner
    print(f"optimizer {type(found).__module__}.{type(found).__qualname__}", flush=True)


def printing(kind: type[Trainer]) -> type[Trainer]:
    """A class of trainers of transformers, or made from them, that print each batch's loss."""

    class Printing(kind):  # type: ignore[misc,valid-type]
        def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
            value: torch.Tensor = super().training_step(*arguments, **named)
            loss(value)
            return value

        def train(self, *arguments: Any, **named: Any) -> Any:
            done = super().train(*arguments, **named)
            optimizer(self.optimizer)
            return done

    return Printing


def tokenizer(words: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the words w0, w1 and so on, between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ("<unk>", "<pad>", "<eos>", "[CLS]", "[SEP]", "[MASK]")
    names = [*special, *(f"w{number}" for number in range(words - len(special)))]
    made = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def text(generator: torch.Generator, words: int, vocabulary: int = 500) -> str:
    """Random words."""
    numbers = torch.randint(0, vocabulary, (words,), generator=generator)
    return " ".join(f"w{number}" for number in numbers.tolist())
