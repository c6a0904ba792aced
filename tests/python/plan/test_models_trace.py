"""A trace gives a model with the times that its passes took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trace_builder as build
from harness import REPOSITORY
from memtide._capi import admin
from memtide._trace import files
from memtide.errors import InvalidArgument
from memtide_plan.models.described import Options
from memtide_plan.models.trace import from_trace

_MIB = 2**20
_GPT = REPOSITORY / "bench" / "traces" / "gpt.trace.gz"
_TOKENS = Options(batch=4, sequence=8)
_HERE = replace(_TOKENS, computes_here=True)


def _moments(again: bool = False) -> list[bytes]:
    """Two iterations, of 100 ms each, that are alike: an embedding, three layers and a head, which
    shares its chunk with the third layer. `again`: a layer is computed again in its backward pass,
    from its 5th to its 10th ms."""
    moments = []
    for start in (0, 100):
        forward = [("embed", 0, (0,)), ("layers.0.mlp", 2, (1,)), ("layers.1.mlp", 12, (2,))]
        forward += [("layers.2.mlp", 22, (3,)), ("norm", 32, (3,))]
        moments += [
            build.moment(build.FORWARD, name, start + at, *((c, build.READ) for c in chunks))
            for name, at, chunks in forward
        ]
        backward = [("norm", 34, 4), ("layers.2.mlp", 36, 4), ("layers.1.mlp", 50, 5)]
        backward += [("layers.0.mlp", 64, 5), ("embed", 78, 5)]
        moments += [
            build.moment(build.BACKWARD, name, start + at, (chunk, build.WRITE))
            for name, at, chunk in backward
        ]
        if again:
            into = len(moments) - 2
            moments[into:into] = [
                build.moment(build.FORWARD, "layers.1.mlp", start + 55, (2, build.READ)),
                build.moment(build.BACKWARD, "layers.1.mlp", start + 60, (5, build.WRITE)),
            ]
        moments.append(build.moment(build.STEP, "AdamW", start + 80, (6, build.WRITE)))
    return moments


def _trace(profile: Mapping[str, Any] | None = None, *, again: bool = False) -> bytes:
    kinds = [1, 1, 1, 1, 2, 2, 3]  # Parameters, gradients, the optimizer's states.
    moments = _moments(again)
    raw = build.trace(
        moments,
        iteration_ends=[len(moments) // 2, len(moments)],
        chunks=[build.chunk(number, 900 + number, kind) for number, kind in enumerate(kinds)],
        stalls=[build.stall(113, 4, build.SSD)],
    )
    return raw if profile is None else admin.add_to_trace(raw, {"activation_profile": profile})


def _file(folder: Path, raw: bytes) -> Path:
    path = folder / "run.trace.gz"
    files.save(raw, path)
    return path


def _saved(part: str, size: int) -> dict[str, Any]:
    return {"part": f"ACTIVATION_PART_{part}", "size_bytes": size}


_PROFILE = {
    "blocks": [
        {
            "name": f"layers.{number}",
            "saved": [_saved("INPUT", 4096), _saved("ATTENTION", 512), _saved("REST", 8192)] * 2,
            "recomputable": True,
        }
        for number in range(3)
    ],
    "others": [_saved("REST", 2048)],
}


def test_blocks_have_their_chunks_and_times(tmp_path: Path) -> None:
    described = from_trace(_file(tmp_path, _trace(_PROFILE)), _HERE)
    embedding, layers, head = described.model.blocks
    assert (embedding.name, layers.name, layers.count, head.name) == (
        "embedding",
        "layers",
        3,
        "head",
    )
    assert described.model.parameters() == pytest.approx(4 * 4 * _MIB / 4, abs=3)
    # The head shares the last layer's chunk.
    assert layers.parameters == pytest.approx((1 + 1 + 0.5) * _MIB / 3, abs=1)
    assert head.parameters == _MIB / 2
    # Half as many chunks have gradients, and a quarter has states.
    assert described.model.trained_parameters() == pytest.approx(2 * _MIB, abs=3)
    assert described.states is not None
    assert described.states.optimizer == 4 / 2
    # The second iteration: a layer's forward pass takes 10 ms, of which one waits for 4.
    assert layers.forward_s_per_token == pytest.approx((0.030 - 0.004) / 3 / 32)
    assert layers.backward_s_per_token == pytest.approx(3 * 0.014 / 3 / 32)
    assert head.forward_s_per_token == pytest.approx(0.002 / 32)
    assert embedding.backward_s_per_token == pytest.approx(0.002 / 32)


def test_saved_bytes_are_those_of_all_micro_batches(tmp_path: Path) -> None:
    _, layers, head = from_trace(_file(tmp_path, _trace(_PROFILE)), _TOKENS).model.blocks
    assert layers.input_bytes_per_token == 2 * 4096 / 32
    assert layers.attention_bytes_per_token == 2 * 512 / 32
    assert layers.rest_bytes_per_token == 2 * 8192 / 32
    assert layers.recomputable
    assert head.rest_bytes_per_token == 2048 / 32


def test_what_is_computed_again_counts_once(tmp_path: Path) -> None:
    layers, again = (
        from_trace(_file(tmp_path, raw), _HERE).model.blocks[1]
        for raw in (_trace(_PROFILE), _trace(_PROFILE, again=True))
    )
    assert again.parameters == layers.parameters
    assert again.forward_s_per_token == layers.forward_s_per_token
    assert again.backward_s_per_token == pytest.approx(3 * 0.014 / 3 / 32 - 0.005 / 3 / 32)


def test_times_are_those_of_the_processor_that_recorded_them(tmp_path: Path) -> None:
    described = from_trace(_file(tmp_path, _trace(_PROFILE)), _TOKENS)
    assert all(block.forward_s_per_token is None for block in described.model.blocks)
    assert "the trace's own times are not used" in " ".join(described.notes)
    here = from_trace(_file(tmp_path, _trace(_PROFILE)), _HERE)
    assert "it has to be of this machine" in " ".join(here.notes)


def test_a_trace_without_tokens_or_a_profile_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="say so with --batch and --sequence"):
        from_trace(_file(tmp_path, _trace()), Options(batch=4))
    described = from_trace(_file(tmp_path, _trace()), _TOKENS)
    assert [block.name for block in described.model.blocks] == ["embedding", "layers", "head"]
    assert described.model.blocks[1].saved_bytes_per_token() == 0
    assert "no profile of activations" in " ".join(described.notes)


def test_a_recorded_trace_has_about_the_parameters_of_its_script() -> None:
    # examples/train_gpt.py --layers=8 --width=384 --context=64. Chunks are not full.
    layer = 12 * 384**2 + 13 * 384
    parameters = 8 * layer + (256 + 64 + 256 + 2) * 384
    described = from_trace(_GPT, _TOKENS)
    assert parameters <= described.model.parameters() <= 1.05 * parameters
    assert described.states is not None
    assert described.states.optimizer == pytest.approx(8, rel=0.05)


def test_what_is_no_trace_of_an_iteration_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"none\.trace\.gz' cannot be read as a trace"):
        from_trace(tmp_path / "none.trace.gz")
    with pytest.raises(InvalidArgument, match="has no whole iteration: record a run of more"):
        from_trace(_file(tmp_path, build.trace(_moments())))
    without = build.trace(_moments(), iteration_ends=[11])
    with pytest.raises(InvalidArgument, match="no forward pass that reads parameters"):
        from_trace(_file(tmp_path, without), _TOKENS)
