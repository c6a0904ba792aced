"""A script shows its model without training, and without writing anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import REPOSITORY
from memtide._plan_file.model import Block
from memtide.errors import InvalidArgument
from memtide_plan.models.config import from_config
from memtide_plan.models.described import Described, Options
from memtide_plan.models.source import model_of

_WIDTH, _WORDS, _LAYERS = 256, 1000, 3

_MODULES = f"""
import torch
from torch import nn
from torch.nn import functional

WIDTH, WORDS = {_WIDTH}, {_WORDS}

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        # Schedules of depth are read from tensors when a layer is made.
        self.rate = [value.item() for value in torch.linspace(0, 1, 4)][-1]

    def forward(self, x):
        parts = self.mix(self.first(x)).view(*x.shape[:2], 3, 4, -1).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape_as(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))

class Model(nn.Module):
    def __init__(self, layers={_LAYERS}):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, mask=None):
        if mask is not None and not mask.all():
            raise ValueError("this model has no masks")
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
"""


def _script(folder: Path, text: str, modules: str = _MODULES) -> Path:
    path = folder / "train.py"
    path.write_text(modules + text)
    return path


def _seen(path: Path, *arguments: str) -> Described:
    return model_of(str(path), Options(arguments=arguments, timeout_s=400))


def _named(described: Described) -> dict[str, Block]:
    return {block.name: block for block in described.model.blocks}


def test_a_script_shows_what_a_config_says(tmp_path: Path) -> None:
    path = _script(
        tmp_path,
        """
model = Model()
for parameter in model.places.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
class Task(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

task = Task(model)
tokens = torch.randint(WORDS, (2, 32))
logits = task.model(tokens, mask=torch.ones_like(tokens))
""",
    )
    seen = _seen(path)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "architectures": ["GPT2LMHeadModel"],
                "n_embd": _WIDTH,
                "n_head": 4,
                "n_layer": _LAYERS,
                "n_positions": 64,
                "vocab_size": _WORDS,
                "resid_pdrop": 0,
                "embd_pdrop": 0,
            }
        )
    )
    stated = from_config(tmp_path / "config.json", Options(compute_type="float32"))
    assert seen.model.parameters() == stated.model.parameters()
    assert seen.model.parameters() - seen.model.trained_parameters() == 64 * _WIDTH
    ours, theirs = _named(seen)["model.blocks"], _named(stated)["layers"]
    assert ours.count == theirs.count == _LAYERS
    for name in (
        "parameters",
        "flop_per_token",
        "flop_per_token_pair",
        "input_bytes_per_token",
        "attention_bytes_per_token",
        "rest_bytes_per_token",
        "recomputable",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    head, predicted = _named(seen)["head"], _named(stated)["head"]
    assert head.flop_per_token == predicted.flop_per_token
    assert head.saved_bytes_per_token() == pytest.approx(
        predicted.saved_bytes_per_token(), rel=0.01
    )
    assert (seen.batch, seen.sequence, seen.compute_type) == (2, 32, "float32")
    assert seen.states is not None
    assert (seen.states.weight, seen.states.gradient, seen.states.optimizer) == (4, 4, 8)
    assert seen.model.causal


def test_a_model_that_no_machine_has_memory_for_and_its_device(tmp_path: Path) -> None:
    # 10^12 parameters, on a device that is not here, in a type of 16 bits.
    path = _script(
        tmp_path,
        """
layers = [nn.Linear(2**18, 2**18, bias=False) for _ in range(16)]
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
""",
        "import torch\nfrom torch import nn\n",
    )
    seen = _seen(path)
    assert seen.model.parameters() == 16 * 2**36
    assert [(block.name, block.count) for block in seen.model.blocks] == [("layers", 16)]
    assert seen.states is not None
    assert (seen.states.weight, seen.states.optimizer) == (2, 2)
    assert seen.compute_type == "bfloat16"
    (block,) = seen.model.blocks
    assert block.flop_per_token == 2 * 2**36
    assert any("No forward pass was seen (it has ended before" in note for note in seen.notes)


def test_nothing_is_written_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    log = tmp_path / "old" / "log.txt"
    log.write_text("the run before\n")
    path = _script(
        tmp_path,
        """
import os, shutil, subprocess, sys
from pathlib import Path

shutil.rmtree("old")
os.makedirs("out/run")
with open("old/log.txt", "a") as log:
    log.write("now\\n")
assert Path("old/log.txt").read_text() == "the run before\\nnow\\n"
Path("new.txt").write_text("new")
os.replace("new.txt", "old/log.txt")
import tempfile
with tempfile.NamedTemporaryFile("w", delete=False) as made:
    made.write("an output that is written whole")
os.replace(made.name, "old/log.txt")
Path("out/run/options.txt").write_text(" ".join(sys.argv[1:]))
try:
    subprocess.run(["touch", "touched"])
except OSError:
    pass
try:
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
model = Model(layers=len(sys.argv[1]))
torch.save(model.state_dict(), "first.pt")
optimizer = torch.optim.Adagrad(model.parameters())
try:
    loss = model(torch.zeros(1, 8, dtype=torch.long)).mean()
finally:
    Path("finally").touch()
""",
    )
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    seen = _seen(Path(path.name), "four")
    assert sorted(tmp_path.rglob("*")) == before
    assert log.read_text() == "the run before\n"
    assert _named(seen)["blocks"].count == len("four")
    assert seen.states is not None
    assert seen.states.optimizer == 4


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "raise ValueError('no data\\nhere')",
            "has raised ValueError: no data before an optimizer",
        ),
        ("import sys; sys.exit(3)", "it has ended with status 3 before an optimizer"),
        ("print('hello')", "it has ended before an optimizer of torch was made"),
        ("import os; os._exit(0)", "its process ended before its optimizer was made"),
    ],
)
def test_a_script_without_a_model_is_one_line(text: str, error: str, tmp_path: Path) -> None:
    path = _script(tmp_path, text, "")
    with pytest.raises(InvalidArgument, match=error) as raised:
        _seen(path)
    assert "cannot be seen without running it" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_script_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = _script(tmp_path, "import time\nwhile True:\n    time.sleep(0.1)\n", "")
    with pytest.raises(InvalidArgument, match="it has shown none in 2 s before an optimizer"):
        model_of(str(path), Options(timeout_s=2))


def test_the_example_shows_its_model() -> None:
    script = REPOSITORY / "examples" / "train_gpt.py"
    seen = _seen(script, "--layers=2", "--width=128", "--batch=4", "--context=16")
    assert (seen.batch, seen.sequence) == (4, 16)
    assert _named(seen)["blocks"].count == 2
    layer = 12 * 128**2 + 13 * 128
    assert seen.model.parameters() == 2 * layer + (2 * 256 + 16 + 2) * 128


def test_a_name_decides_what_a_source_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"'llama' is no model: name a .*\.json.*\.py"):
        model_of("llama")
    with pytest.raises(InvalidArgument, match="there is no file 'none.json'"):
        model_of("none.json")
    script = _script(tmp_path, "", "")
    with pytest.raises(InvalidArgument, match="adapters are an option of a config.json"):
        model_of(str(script), Options(lora_rank=8))
