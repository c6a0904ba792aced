"""Activations that an iteration saved are recorded, under the moments of its trace."""

from __future__ import annotations

import json
from itertools import pairwise

import torch
from activation_runs import BLOCKS, INPUT_BYTES, SHORT_BYTES, Block, Model, managed, train
from fake_client import CHUNK_BYTES, FakeClient
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.planning import Profiled
from memtide._activations.profile import ActivationProfile, Part, SavedBytes
from memtide._activations.shape_plans import ShapePlans
from memtide._capi.client import Phase
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

_LEAST_BYTES = 1024  # Smaller tensors are saved as they are.


def profiled(model: nn.Module, client: FakeClient | None = None, **kwargs: int) -> Profiled:
    with managed(client=client) as activations:
        train(model, 3, **kwargs)
        assert activations.planning.profiled is not None
        return activations.planning.profiled


def saved_by(model: nn.Module) -> list[torch.UntypedStorage]:
    """The storages that plain torch saves in a step, each once."""
    storages = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        is_leaf = tensor.is_leaf and tensor.requires_grad
        if tensor.nbytes >= _LEAST_BYTES and not is_leaf:
            # Transposed parameters are theirs.
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        train(model, 1)
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    return [storage for address, storage in storages.items() if address not in parameters]


def test_each_storage_is_counted_once_and_no_other_is() -> None:
    profile = profiled(Model()).profile
    saved = [*profile.others, *(saved for block in profile.blocks for saved in block.saved)]
    assert sum(each.size_bytes for each in saved) == sum(s.nbytes() for s in saved_by(Model()))


def test_a_block_s_bytes_are_of_its_input_of_attention_and_the_rest() -> None:
    blocks = profiled(Model()).profile.blocks
    assert [block.name for block in blocks] == [f"blocks.{number}" for number in range(BLOCKS)]
    logarithms = INPUT_BYTES // 16  # One number for each head's 16.
    for block in blocks:
        assert [saved.part for saved in block.saved] == [Part.INPUT, Part.REST, Part.ATTENTION]
        assert block.bytes_of(Part.INPUT) == INPUT_BYTES
        assert block.bytes_of(Part.ATTENTION) == INPUT_BYTES + logarithms
        assert block.bytes_of(Part.REST) > 10 * INPUT_BYTES
        assert block.recomputable
        assert 0 < block.forward_without_attention_ns < block.forward_ns


def test_moments_are_those_that_were_reported_since_the_last_iteration() -> None:
    client = FakeClient(lease_budget=64)
    iteration = profiled(Model(), client)
    ends = [i for i, reported in enumerate(client.reported) if reported is None]
    reported = client.reported[ends[-2] + 1 : ends[-1]]
    assert [(Phase[phase.upper()], name) for phase, name in iteration.moments] == reported
    passes = 2 + 4 * BLOCKS
    assert [phase for phase, _ in reported[: 2 * passes]] == (
        [Phase.FORWARD] * passes + [Phase.BACKWARD] * passes
    )
    for number, block in enumerate(iteration.profile.blocks):
        saved = {each.part: each for each in block.saved}
        first = 1 + 4 * number  # One layer is before the blocks.
        assert saved[Part.INPUT].packed_moment == first
        assert saved[Part.ATTENTION].packed_moment == first + 1
        assert saved[Part.REST].packed_moment == first + 3
        # The input is what its first layer asks for, and that comes last in backward.
        assert saved[Part.INPUT].last_unpacked_moment == 2 * passes - 1 - first
        assert saved[Part.REST].first_unpacked_moment == 2 * passes - 1 - (first + 3) - 1
    everything = [saved for block in iteration.profile.blocks for saved in block.saved]
    for each in [*everything, *iteration.profile.others]:
        assert each.packed_moment <= each.first_unpacked_moment <= each.last_unpacked_moment


def test_each_micro_batch_is_recorded() -> None:
    profile = profiled(Model(), micro_batches=3).profile
    for block in profile.blocks:
        for part in Part:
            saved = [each for each in block.saved if each.part is part]
            assert [each.micro_batch for each in saved] == [0, 1, 2]
            assert len({each.size_bytes for each in saved}) == 1
            assert all(a.last_unpacked_moment < b.packed_moment for a, b in pairwise(saved))
    by_batch = [
        sum(each.size_bytes for each in profile.others if each.micro_batch == number)
        for number in range(3)
    ]
    assert by_batch[0] > 0 and len(set(by_batch)) == 1


class Rectified(nn.Module):
    """Saves its result, which is the next block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.linear(value).relu()


def test_what_a_block_saves_and_the_next_one_is_given_is_the_next_one_s_input() -> None:
    with managed(70_000) as activations:
        train(Model(Rectified), 3)
        profile = activations.planning.profiled.profile
    for block in profile.blocks[:-1]:
        assert [(each.part, each.size_bytes) for each in block.saved] == [(Part.INPUT, INPUT_BYTES)]
    assert {each.part for each in profile.blocks[-1].saved} == {Part.INPUT, Part.REST}


def test_nothing_is_recorded_or_reported_where_all_fits() -> None:
    client = FakeClient(lease_budget=4096)
    with managed(1 << 40, client) as activations:
        train(Model(), 4)
        assert not activations.planning.is_recording
        assert activations.planning.profiled is None
    assert client.reported == []


def test_an_iteration_whose_activations_do_not_fit_is_reported_though_all_chunks_do() -> None:
    client = FakeClient(lease_budget=4096)
    iteration = profiled(Model(), client)
    assert client.stats().chunks * CHUNK_BYTES < 4096 * CHUNK_BYTES
    assert client.reported.count(None) == 3
    assert client.reported[0] is None  # The first iteration is only known to be short at its end.
    assert len(iteration.moments) > 4 * BLOCKS * 2


def test_an_iteration_in_which_something_is_recomputed_is_no_profile() -> None:
    model = Model()
    with managed() as activations:
        planning = activations.planning
        planning.planner = lambda _: None  # There is no plan for these shapes yet.
        train(model, 3)
        first = planning.profiled
        one_block = (BlockPlan(rest=Choice.RECOMPUTE), *[BlockPlan()] * (BLOCKS - 1))
        planning.apply(ActivationPlan(one_block), first.signature)
        planning._plans = ShapePlans()
        train(model, 1)
        assert planning.recomputed == 1 and planning.profiled is first


def test_a_profile_s_json_is_read_back() -> None:
    profile = profiled(Model()).profile
    text = json.dumps(profile.as_json())
    assert ActivationProfile.of_json(json.loads(text)) == profile
    # Protobuf leaves out what is zero, and writes 64-bit numbers as texts.
    short = {"part": "ACTIVATION_PART_ATTENTION", "size_bytes": "4096", "packed_moment": 3}
    assert SavedBytes.of_json(short) == SavedBytes(Part.ATTENTION, 4096, 3, 0, 0, 0)


def test_watching_ends_with_memtide() -> None:
    with managed(SHORT_BYTES):
        train(Model(), 3)
        assert "_call_impl" in vars(Block)
    assert "_call_impl" not in vars(Block)
