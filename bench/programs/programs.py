"""The programs: how each is started, and how its losses look in what it prints.

The scripts of public repositories are in checkouts, which are not part of this tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import data

SCRIPTS = Path(__file__).resolve().parent / "scripts"


@dataclass(frozen=True)
class Checkout:
    """A public repository, and the folder in it that a program is started in."""

    repository: str
    folder: str = "."

    def path(self, checkouts: Path) -> Path:
        """Where it is below the folder that has all checkouts."""
        return checkouts / self.repository.replace("/", "+") / self.folder


@dataclass(frozen=True)
class Program:
    name: str
    kind: str
    command: tuple[str, ...]  # The script and its arguments.
    checkout: Checkout | None = None  # None: the script is in SCRIPTS.
    losses: str = r"^loss (\S+)"  # The matches are its losses, as it prints them.
    prepare: Callable[[Path], None] = lambda folder: None  # Makes its data in its folder.

    @property
    def arguments(self) -> list[str]:
        """The arguments of Python."""
        script, *rest = self.command
        return [script if self.checkout else str(SCRIPTS / script), *rest]


_NANO_GPT = Program(
    "nanoGPT",
    "language",
    (
        "train.py",
        "--device=cpu",
        "--compile=False",
        "--dtype=float32",
        "--dataset=generated",
        "--eval_interval=1000",
        "--eval_iters=1",
        "--gradient_accumulation_steps=1",
        "--batch_size=24",
        "--block_size=256",
        "--n_layer=8",
        "--n_head=6",
        "--n_embd=192",
        "--max_iters=7",
    ),
    Checkout("karpathy/nanoGPT"),
    losses=r"^iter \d+: loss (\S+),",
    prepare=data.tokens_of_nano_gpt,
)

_MIN_GPT = Program(
    "minGPT",
    "language",
    (
        "projects/chargpt/chargpt.py",
        "--model.model_type=gpt-micro",
        "--data.block_size=256",
        "--trainer.batch_size=56",
        "--trainer.num_workers=0",
        "--trainer.max_iters=11",  # It prints every tenth loss, and what the model writes.
    ),
    Checkout("karpathy/minGPT"),
    losses=r"train loss (\S+)",
    prepare=data.text_of_min_gpt,
)

_WORD_TRANSFORMER = Program(
    "word_transformer",
    "language",
    (
        "main.py",
        "--data=generated",
        "--model=Transformer",
        "--emsize=128",
        "--nhead=4",
        "--nhid=256",
        "--nlayers=6",
        "--bptt=128",
        "--batch_size=96",
        "--epochs=1",
        "--log-interval=1",
        "--use-optimizer",
        "--lr=0.001",
    ),
    Checkout("pytorch/examples", "word_language_model"),
    losses=r"ppl\s+(\S+)",
    prepare=data.texts_of_word_language_model,
)

_IMAGENET = Program(
    "imagenet_mobilenet",
    "vision",
    (
        "main.py",
        "--arch=mobilenet_v2",
        "--batch-size=16",
        "--epochs=1",
        "--workers=0",
        "--print-freq=1",
        "--seed=0",
        "images",
    ),
    Checkout("pytorch/examples", "imagenet"),
    losses=r"Loss (\S+)",
    prepare=data.images(train=64, validation=4),
)


_TIMM = Program(  # Eight steps.
    "timm_vit",
    "vision",
    (
        "train.py",
        "--data-dir=images",
        "--val-split=val",
        "--device=cpu",
        "--model=vit_tiny_patch16_224",
        "--num-classes=2",
        "--batch-size=48",
        "--epochs=1",
        "--warmup-epochs=0",
        "--opt=adamw",
        "--lr=0.001",
        "--model-ema",
        "--workers=1",
        "--log-interval=1",
        "--output=out",
    ),
    Checkout("huggingface/pytorch-image-models"),
    losses=r"Loss:\s+(\S+)",
    prepare=data.images(train=192, validation=4),
)


PROGRAMS = [
    _NANO_GPT,
    _MIN_GPT,
    _WORD_TRANSFORMER,
    Program("transformers_llama", "language", ("transformers_llama.py",)),
    Program("accelerate_t5", "language", ("accelerate_t5.py",)),
    Program("peft_lora", "LoRA", ("peft_lora.py",)),
    Program("transformers_mixtral", "experts", ("transformers_mixtral.py",)),
    Program("transformers_ast", "speech", ("transformers_ast.py",)),
    Program("transformers_whisper", "speech", ("transformers_whisper.py",)),
    Program("diffusers_unet", "diffusion", ("diffusers_unet.py",)),
    _IMAGENET,
    _TIMM,
]
