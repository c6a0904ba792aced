"""Makes the data that programs train on: the same in each call."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Prepare = Callable[[Path], None]


def tokens_of_nano_gpt(folder: Path) -> None:
    """Random tokens of a vocabulary of 512, as data/*/prepare.py of nanoGPT writes them."""
    target = folder / "data/generated"
    target.mkdir(parents=True)
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        random.integers(0, 512, 100_000).astype(np.uint16).tofile(target / f"{split}.bin")
    (target / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 512}))


def text_of_min_gpt(folder: Path) -> None:
    """A text with all letters of the one that minGPT continues."""
    letters = list("O God, O God!\n abcdefghijklmnopqrstuvwxyz")
    text = "".join(np.random.default_rng(0).choice(letters, 50_000))
    (folder / "input.txt").write_text("O God, O God!" + text, encoding="utf-8")


def texts_of_word_language_model(folder: Path) -> None:
    """Texts of 1000 different words: of `train.txt`, eight batches of 96 times 128."""
    random = np.random.default_rng(0)
    for split, words in (("train", 96 * 128 * 8 + 96), ("valid", 2600), ("test", 2600)):
        numbers = random.integers(0, 1000, words)
        (folder / "generated").mkdir(exist_ok=True)
        text = " ".join(f"w{number}" for number in numbers)
        (folder / f"generated/{split}.txt").write_text(text + "\n", encoding="utf-8")


def images(train: int, validation: int, size: int = 256) -> Prepare:
    """Makes folders of images of noise, in two classes each: as many as are said in each class."""
    return functools.partial(_make_images, train, validation, size)


def _make_images(train: int, validation: int, size: int, folder: Path) -> None:
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("val", validation)):
        for label in ("left", "right"):
            target = folder / "images" / split / label
            target.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(target / f"{number}.png")
