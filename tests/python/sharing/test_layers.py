"""Layers that share train as tied parameters do in plain torch, and part when they are delinked."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from harness import REPOSITORY
from memtide.errors import FailedPrecondition, InvalidArgument
from memtide_methods.sharing.layers import delink, share_layers
from torch import nn

_LAYERS, _OF_LAYER = 4, 6  # _OF_LAYER: parameters of a layer.


class Layer(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mix(self.norm(x))
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Layer() for _ in range(_LAYERS))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores


class Tied(nn.Module):
    """The same in plain torch: one block, used several times."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.block, self.head = copy.deepcopy(model.blocks[0]), copy.deepcopy(model.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(_LAYERS):
            x = self.block(x)
        scores: torch.Tensor = self.head(x)
        return scores


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 8, generator=generator)
        loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 3)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("is_given", [False, True])
def test_sharing_layers_have_the_bits_of_tied_ones(*, is_given: bool) -> None:
    model = Model()
    tied = Tied(model)
    optimizer = _adam(model) if is_given else None
    share_layers(list(model.blocks), optimizer)
    assert _train(model, optimizer or _adam(model)) == _train(tied, _adam(tied))
    count = sum(1 for _ in model.parameters())
    assert count == sum(1 for _ in tied.parameters())
    if optimizer is not None:
        assert len(optimizer.param_groups[0]["params"]) == count


def test_a_checkpoint_of_sharing_layers_loads_in_plain_torch() -> None:
    model = Model()
    share_layers(list(model.blocks))
    _train(model, _adam(model))
    plain = Model()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(4, 8)
    assert torch.equal(plain(x), model(x))


@pytest.mark.parametrize("moments", ["copy", "fresh"])
def test_delinked_layers_go_on_as_a_plain_model_would(moments: str) -> None:
    model = Model()
    optimizer = _adam(model)
    share_layers(list(model.blocks), optimizer)
    _train(model, optimizer)
    plain = Model()
    plain.load_state_dict(model.state_dict())
    plain_optimizer = _adam(plain)
    shared = copy.deepcopy(optimizer.state_dict()["state"])
    delink(list(model.blocks), optimizer, moments=moments)  # type: ignore[arg-type]
    # The checkpoint of the optimizer suits a plain model: the states of the first layer, which all
    # layers have or only the first one, and those of the head.
    state = optimizer.state_dict()
    copied = range(_LAYERS) if moments == "copy" else range(1)
    expected = {_OF_LAYER * layer + n: shared[n] for layer in copied for n in range(_OF_LAYER)}
    expected |= {_OF_LAYER * _LAYERS + n: shared[_OF_LAYER + n] for n in range(2)}
    assert state["state"].keys() == expected.keys()
    for n, entries in expected.items():
        assert all(torch.equal(state["state"][n][name], entries[name]) for name in entries)
    plain_optimizer.load_state_dict(copy.deepcopy(state))
    assert _train(model, optimizer) == _train(plain, plain_optimizer)
    weights = {tuple(block.mix[0].weight.flatten().tolist()) for block in model.blocks}
    assert len(weights) == _LAYERS


def _addresses(layers: nn.ModuleList, optimizer: torch.optim.Optimizer) -> list[set[int]]:
    """The addresses of each layer's parameters, gradients and moments. `data_ptr` would count as a
    write: torch would copy."""
    result = []
    for layer in layers:
        tensors = []
        for parameter in layer.parameters():
            states = [optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq")]
            tensors += [parameter, parameter.grad, *states]
        result.append({torch._C._data_address(t) for t in tensors})
    return result


def test_delinked_layers_have_no_memory_of_their_own_before_they_are_written() -> None:
    model = Model()
    optimizer = _adam(model)
    share_layers(list(model.blocks), optimizer)
    _train(model, optimizer)
    delink(list(model.blocks), optimizer)
    first, *others = _addresses(model.blocks, optimizer)
    assert len(first) == 4 * _OF_LAYER and others == [first] * (_LAYERS - 1)
    # Nor does a forward and backward pass write parameters and moments.
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    assert torch._C._data_address(model.blocks[1].norm.weight) in first
    optimizer.step()
    own = _addresses(model.blocks, optimizer)
    assert sum(len(each) for each in own) == len(set[int]().union(*own))


def test_any_write_to_a_delinked_layer_leaves_the_others() -> None:
    layers = [Layer() for _ in range(3)]
    share_layers(layers)
    before = layers[0].norm.weight.tolist()
    delink(layers)
    layers[0].norm.weight.data.add_(1)
    layers[1].load_state_dict({name: t + 2 for name, t in layers[1].state_dict().items()})
    layers[2].norm.weight.detach().numpy()[:] += 3
    for number, layer in enumerate(layers, 1):
        assert layer.norm.weight.tolist() == [value + number for value in before]


def test_unlike_layers_are_named() -> None:
    wide = Layer(16)
    with pytest.raises(InvalidArgument, match=re.escape("norm.weight is (16,) of torch.float32")):
        share_layers([Layer(), wide])
    less = Layer()
    del less.mix[2]
    with pytest.raises(InvalidArgument, match=re.escape("layer 1 has no parameter mix.2.weight")):
        share_layers([Layer(), less])
    with pytest.raises(InvalidArgument, match=re.escape("layer 0 has no parameter mix.2.weight")):
        share_layers([less, Layer()])
    with pytest.raises(InvalidArgument, match="two layers or more, not 1"):
        share_layers([Layer()])


def test_layers_that_are_tied_to_other_modules_are_refused() -> None:
    model = Model()
    model.other = nn.LayerNorm(8)
    model.other.weight = model.blocks[2].norm.weight
    wanted = "norm.weight of layer 2 is also the weight of a LayerNorm outside of the layers"
    with pytest.raises(InvalidArgument, match=re.escape(wanted)):
        share_layers(list(model.blocks))
    assert model.blocks[1].norm.weight is not model.blocks[0].norm.weight


def test_what_is_no_number_is_in_all_layers_as_in_tied_ones() -> None:
    model = Model()
    share_layers(list(model.blocks))
    optimizer = _adam(model)
    model(torch.full((2, 8), float("nan"))).sum().backward()
    optimizer.step()
    delink(list(model.blocks), optimizer)
    assert all(not p.isfinite().any() for block in model.blocks for p in block.mix[0].parameters())


def test_layers_part_once() -> None:
    layers = [Layer(), Layer()]
    with pytest.raises(FailedPrecondition, match="does not share its norm.weight"):
        delink(layers)
    share_layers(layers)
    delink(layers)
    with pytest.raises(FailedPrecondition, match="only once"):
        delink(layers)


def test_moments_are_copied_or_fresh() -> None:
    with pytest.raises(InvalidArgument, match='moments is "none"'):
        delink([], moments="none")  # type: ignore[arg-type]


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    model = Model()
    optimizer = _adam(model)
    _train(model, optimizer, steps=1)
    with pytest.raises(FailedPrecondition, match="before its first step"):
        share_layers(list(model.blocks), optimizer)


def test_what_a_layer_has_twice_stays_one_parameter() -> None:
    layers = [Layer(8), Layer(8)]
    for layer in layers:
        layer.again = layer.norm
    share_layers(layers)
    delink(layers)
    assert layers[1].again.weight is layers[1].norm.weight
    assert layers[1].norm.weight is not layers[0].norm.weight


def test_the_example_of_the_documents_runs() -> None:
    page = (REPOSITORY / "docs" / "sharing_layers.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    assert len(names["optimizer"].param_groups[0]["params"]) == 48
    assert not torch.equal(names["layers"][0].weight, names["layers"][1].weight)
