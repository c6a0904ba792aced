"""The chosen plan is that of an exhaustive search; wrong input and too little memory are named."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
from typing import Any

import pytest
import torch
from memtide.errors import InvalidArgument, ResourceExhausted
from memtide.pipeline import (
    Devices,
    Fixed,
    Layer,
    Plan,
    Seconds,
    measured_layers,
    modelled_layer,
    plan,
)

_SCHEDULES = ("1f1b", "2bw", "gpipe")


def _model(random_numbers: random.Random) -> list[Layer]:
    def number(most: float) -> float:
        return random_numbers.choice([0.1, 0.5, 1.0]) * random_numbers.uniform(0.1, most)

    return [
        Layer(
            name=str(n),
            forward=Seconds(number(1), number(0.5)),
            backward=Seconds(number(2), number(1)),
            weight_bytes=number(1000),
            gradient_bytes=random_numbers.choice([None, number(1000)]),
            state_bytes=number(2000),
            activation_bytes=number(800),
            output_bytes=number(200),
        )
        for n in range(random_numbers.randint(1, 6))
    ]


def _devices(random_numbers: random.Random) -> Devices:
    return Devices(
        count=random_numbers.randint(1, 6),
        memory=f"{random_numbers.randint(1500, 12000)}B",
        per_server=random_numbers.randint(1, 4),
        inside=f"{random_numbers.randint(500, 5000)}B/s",
        across=f"{random_numbers.randint(20, 500)}B/s",
    )


class _Exhaustive:
    """All plans, by formulas of their own: (seconds, bytes of the largest device) of each."""

    def __init__(self, layers: list[Layer], devices: Devices, batch: int) -> None:
        self.layers, self.devices, self.batch = layers, devices, batch

    def all(self) -> list[tuple[float, float]]:
        found = []
        for width, depth in itertools.product(range(1, self.devices.count + 1), repeat=2):
            if self.batch % width or width * depth > self.devices.count:
                continue
            share = self.batch // width
            for micro, recompute, name, layout in itertools.product(
                range(1, share + 1), (False, True), _SCHEDULES, (0, 1)
            ):
                if share % micro or (name == "2bw" and not 2 <= depth <= share // micro):
                    continue
                for cuts in itertools.combinations(range(1, len(self.layers)), depth - 1):
                    edges = [0, *cuts, len(self.layers)]
                    found.append(self._one(edges, width, micro, recompute, name, layout))
        return found

    def _one(
        self, edges: list[int], width: int, micro: int, recompute: bool, name: str, layout: int
    ) -> tuple[float, float]:
        depth = len(edges) - 1
        count = self.batch // width // micro
        server = [
            [(k * depth + p if layout == 0 else p * width + k) // self.devices.per_server
             for k in range(width)]
            for p in range(depth)
        ]  # fmt: skip
        inside = float(self.devices.inside.removesuffix("B/s"))
        across = float(self.devices.across.removesuffix("B/s"))
        link_s = [
            2 * micro * self.layers[edges[p + 1] - 1].output_bytes
            / (inside if server[p] == server[p + 1] else across)
            for p in range(depth - 1)
        ]  # fmt: skip
        loads, passes, sizes = [], [], []
        for p in range(depth):
            stage = self.layers[edges[p] : edges[p + 1]]
            forward = sum(x.forward.per_call_s + micro * x.forward.per_sample_s for x in stage)
            backward = sum(x.backward.per_call_s + micro * x.backward.per_sample_s for x in stage)
            compute = forward * (1 + recompute) + backward
            before = link_s[p - 1] if p else 0.0
            after = link_s[p] if p < depth - 1 else 0.0
            weights = sum(x.weight_bytes for x in stage)
            gradients = sum(
                x.weight_bytes if x.gradient_bytes is None else x.gradient_bytes for x in stage
            )
            rate = inside if len(set(server[p])) == 1 else across
            exchange = 2 * (width - 1) / width * gradients / rate
            times = count if name == "2bw" else count - 1
            passes.append(compute + before)
            loads.append(times * (compute + before + after) + exchange)
            flying = count if name == "gpipe" else min(count, depth - p)
            saved = micro * sum(x.activation_bytes for x in stage)
            entering = micro * self.layers[edges[p] - 1].output_bytes if p else 0.0
            activations = saved + flying * entering if recompute else flying * saved
            states = sum(x.state_bytes for x in stage)
            sizes.append((1 + (name == "2bw")) * weights + gradients + states + activations)
        return max(loads) + (0 if name == "2bw" else sum(passes)), max(sizes)


def test_the_plan_is_that_of_an_exhaustive_search() -> None:
    outcomes = {"fits": 0, "does not": 0}
    schedules = set()
    for seed in range(300):
        random_numbers = random.Random(seed)
        layers, devices = _model(random_numbers), _devices(random_numbers)
        batch = random_numbers.choice([1, 4, 6, 8, 12])
        memory = float(devices.memory.removesuffix("B"))
        every = _Exhaustive(layers, devices, batch).all()
        fitting = [seconds for seconds, size in every if size <= memory]
        if fitting:
            chosen = plan(layers, devices, batch, schedules=_SCHEDULES)
            assert chosen.seconds == pytest.approx(min(fitting), rel=1e-6), seed
            assert max(m.total() for m in chosen.memory) <= memory * (1 + 1e-9)
            schedules.add(chosen.shape.schedule.name)
            outcomes["fits"] += 1
        else:
            with pytest.raises(ResourceExhausted) as caught:
                plan(layers, devices, batch, schedules=_SCHEDULES)
            (least,) = re.findall(r"\((\d+) B\)", str(caught.value))
            assert int(least) == pytest.approx(min(size for _, size in every), abs=2), seed
            outcomes["does not"] += 1
    assert min(outcomes.values()) >= 20, outcomes
    assert schedules >= {"1f1b", "2bw"}


_LAYER = Layer(
    name="only",
    forward=Seconds(1.0),
    backward=Seconds(2.0),
    weight_bytes=1000,
    state_bytes=2000,
    activation_bytes=100,
    output_bytes=10,
)
_DEVICES = Devices(count=4, memory="1MB", per_server=4, inside="1GB/s", across="1GB/s")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"devices": dataclasses.replace(_DEVICES, count=0)}, "count is 0"),
        ({"devices": dataclasses.replace(_DEVICES, memory="16")}, "'16', without a unit"),
        ({"devices": dataclasses.replace(_DEVICES, inside="25GB")}, "'25GB', without a unit"),
        ({"devices": dataclasses.replace(_DEVICES, across="0GB/s")}, "more than zero"),
        ({"layers": []}, "no layers"),
        (
            {"layers": [dataclasses.replace(_LAYER, forward=Seconds(math.nan))]},
            "layer only: forward.per_sample_s is nan",
        ),
        ({"layers": [dataclasses.replace(_LAYER, state_bytes=-1)]}, "state_bytes is -1"),
        ({"batch": 0}, "0 samples"),
        ({"batch": 9, "fixed": Fixed(width=2)}, "9 samples is not divisible"),
        ({"schedules": ["dapple"]}, "dapple"),
        ({"schedules": ["2bw"]}, "2bw needs two stages"),
    ],
)
def test_wrong_input_is_named(wrong: dict[str, Any], message: str) -> None:
    arguments = {"layers": [_LAYER], "devices": _DEVICES, "batch": 8} | wrong
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        plan(**arguments)


def test_what_is_fixed_is_in_the_plan() -> None:
    fixed = Fixed(width=1, depth=2, micro_batch=2, recompute=True)
    chosen: Plan = plan([_LAYER] * 3, _DEVICES, 8, fixed=fixed)
    shape = chosen.shape
    assert (shape.width, shape.depth, shape.micro_batch, shape.recompute) == (1, 2, 2, True)
    assert shape.micro_batches == 4


def test_a_modelled_layer_has_the_time_of_its_flop() -> None:
    layer = modelled_layer(
        name="block",
        forward_flop=6e12,
        flop_per_s=3e12,
        weight_bytes=1,
        state_bytes=2,
        activation_bytes=3,
        output_bytes=4,
    )
    assert (layer.forward, layer.backward) == (Seconds(2.0), Seconds(4.0))


def test_measured_layers_have_the_sizes_of_the_model() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 16), torch.nn.ReLU())
    layers = measured_layers(model, torch.arange(4), states=2, rounds=1)
    assert [layer.weight_bytes for layer in layers] == [10 * 8 * 4, (8 * 16 + 16) * 4, 0]
    assert [layer.state_bytes for layer in layers] == [2 * layer.weight_bytes for layer in layers]
    assert [layer.output_bytes for layer in layers] == [8 * 4, 16 * 4, 16 * 4]
    # The embedding saves its indices, the product its input, ReLU its result.
    assert [layer.activation_bytes for layer in layers] == [8, 8 * 4, 16 * 4]
    assert all(layer.forward.per_sample_s + layer.forward.per_call_s > 0 for layer in layers)
    assert all(parameter.grad is None for parameter in model.parameters())
