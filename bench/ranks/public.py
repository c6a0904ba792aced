"""A public script trains on four ranks with the parameters and states of one: `public --help`.

The script is TRL's sft.py as its package has it (huggingface/trl, trl/scripts/sft.py, the tag of
the package's version). Only sizes are chosen: a small Llama at random init, made-up texts, ten
steps on the CPU. It is run plainly, and under `memtide run torchrun` on one rank and on four. Exits
0 if all ranks keep at most 1.05 of what one keeps, with plain torch's losses and weights to the
bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_BENCH = Path(__file__).resolve().parents[1]
_TRAINERS = _BENCH / "programs" / "trainers"
sys.path += [str(_BENCH), str(_TRAINERS)]

import daemon_process  # noqa: E402
import torch  # noqa: E402
from memtide._daemon import inspection  # noqa: E402
from memtide._util.sizes import format_size  # noqa: E402
from printing import text, tokenizer  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, set_seed  # noqa: E402

_RANKS, _STEPS, _WORDS, _GOAL = 4, 10, 512, 1.05
_STATES = ("parameter", "optimizer_state")
_MOST_SECONDS, _SECONDS_A_LOOK = 900, 0.1
_LOSS = re.compile(r"'loss': '?([\d.e+-]+)")


@dataclass(frozen=True)
class _Outcome:
    losses: list[str]
    weights: str  # A digest.
    kept_bytes: int  # When all sessions were last seen with states; 0 without memtide.


def _prepare(folder: Path) -> list[str]:
    """Makes a model and texts; returns the script and its arguments, without where it writes."""
    set_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_WORDS,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            bos_token_id=2,
            eos_token_id=2,
            pad_token_id=1,
        )
    ).save_pretrained(folder / "model")
    tokenizer(_WORDS).save_pretrained(folder / "model")
    random = torch.Generator().manual_seed(0)
    (folder / "texts").mkdir()
    lines = [json.dumps({"text": text(random, 48)}) for _ in range(_RANKS * _STEPS * 2)]
    (folder / "texts" / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [
        *("-m", "trl.scripts.sft", f"--model_name_or_path={folder / 'model'}"),
        *(f"--dataset_name={folder / 'texts'}", f"--max_steps={_STEPS}", "--learning_rate=1e-3"),
        *("--per_device_train_batch_size=2", "--max_length=64", "--use_cpu", "--bf16=False"),
        *("--logging_steps=1", "--report_to=none", "--save_strategy=no", "--disable_tqdm=True"),
        *("--gradient_checkpointing=False", "--ddp_backend=gloo"),
    ]


def _kept(socket_dir: Path, ranks: int) -> int:
    """Bytes of parameters and states on the host and the SSD; 0: not all ranks are there."""
    node = inspection.inspect(socket_dir, sessions=True)
    if len(node.sessions) != ranks:
        return 0
    kinds = [node.kinds[kind] for kind in _STATES]
    return sum(k.host_bytes + k.ssd_bytes for k in kinds) if all(k.host_bytes for k in kinds) else 0


def _run(program: list[str], script: list[str], ranks: int, socket_dir: Path | None) -> _Outcome:
    launcher = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if socket_dir is not None:
        environment["MEMTIDE_SOCKET_DIR"] = str(socket_dir)
    with (
        tempfile.TemporaryDirectory(prefix="public.") as out,
        tempfile.TemporaryFile("w+") as output,
    ):
        command = [sys.executable, "-m", *program, *launcher, *script, f"--output_dir={out}"]
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=out
        )
        kept_bytes, ends = 0, time.monotonic() + _MOST_SECONDS
        while process.poll() is None:
            if time.monotonic() > ends:
                process.kill()
            time.sleep(_SECONDS_A_LOOK)
            kept_bytes = (socket_dir is not None and _kept(socket_dir, ranks)) or kept_bytes
        output.seek(0)
        text_of_run = output.read()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{text_of_run[-4000:]}")
        weights = hashlib.sha256((Path(out) / "model.safetensors").read_bytes()).hexdigest()
    return _Outcome(_LOSS.findall(text_of_run), weights, kept_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/ranks/public", description=__doc__)
    parser.add_argument("--memtided", type=Path, required=True, help=argparse.SUPPRESS)
    memtided: Path = parser.parse_args().memtided
    outcomes: dict[str, _Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="public.") as name:
        folder = Path(name)
        script = _prepare(folder)
        print(f"huggingface/trl v{metadata.version('trl')}: torchrun {' '.join(script)}")
        outcomes["plain"] = _run(["torch.distributed.run"], script, _RANKS, None)
        for ranks in (1, _RANKS):
            flags = ["--host-pool=512MiB", "--ssd-pool=2GiB", "--device=none"]
            with daemon_process.running(memtided, folder, flags) as daemon:
                program = ["memtide", "run", "--chunk-size=2MiB", "torchrun"]
                outcomes[f"{ranks}"] = _run(program, script, ranks, daemon.socket_dir)
    plain, one, ours = (outcomes[name] for name in ("plain", "1", f"{_RANKS}"))
    ratio = ours.kept_bytes / one.kept_bytes
    same = bool(plain.losses) and (plain.losses, plain.weights) == (ours.losses, ours.weights)
    print(
        f"parameters and states: {format_size(one.kept_bytes)} of one rank, "
        f"{format_size(ours.kept_bytes)} of {_RANKS}: {ratio:.2f} (goal {_GOAL})"
    )
    print(f"losses of plain DDP: {' '.join(plain.losses)}")
    print(f"losses and weights under memtide: {'equal to the bit' if same else 'NOT equal'}")
    return 0 if same and ratio <= _GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
