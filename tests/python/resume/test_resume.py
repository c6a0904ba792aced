"""A job is resumed by a new process, which is here another runtime over the same chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Kind
from memtide._memory.alignment import GPU_ALIGNMENT_BYTES
from memtide._memory.leases import LeaseLedger
from memtide._memory.managed_memory import ManagedMemory
from memtide._resume.agree_across_nodes import Agreement
from memtide._resume.manifest_writer import small
from memtide._resume.restored_storages import RestoredStorages
from memtide._resume.step_manifest import (
    SavedOptimizer,
    SavedParameter,
    SavedTensor,
    StepManifest,
    read_manifest,
)
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.around_step.stepping import Stepping
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import DataLoss, FailedPrecondition, ResourceExhausted
from torch import nn

Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    "adagrad": lambda m: torch.optim.Adagrad(m.named_parameters(), lr=0.01),
}


@pytest.fixture
def client() -> Iterator[FakeClient]:
    yield FakeClient()
    runtimes.stop()


def start(client: FakeClient, manifest: StepManifest | None) -> Runtime:
    runtimes.stop()
    stepping = Stepping(commit=True, manifest=manifest)
    return runtimes.start(client, Observer(), adopt_everything=True, stepping=stepping)


def manifest_of(client: FakeClient) -> StepManifest:
    return read_manifest(client.committed_manifest)


def build(make: Make, seed: int, width: int = 30) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 60), nn.Linear(60, width), nn.Linear(width, 4))
    return model, make(model)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = model(torch.randn(5, 24)).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_go_on_as_if_nothing_had_happened(name: str, client: FakeClient) -> None:
    make = OPTIMIZERS[name]
    plain = train(*build(make, 0), range(6))
    start(client, None)
    first = build(make, 0)
    assert train(*first, range(3)) == plain[:3]
    assert client.committed_steps == 3
    manifest = manifest_of(client)
    assert (manifest.lost, manifest.steps) == ("", 3)
    start(client, manifest)
    second = build(make, 9)
    assert train(*second, range(3, 6)) == plain[3:]
    assert client.committed_steps == 6
    assert manifest_of(client).steps == 6


def test_a_resumed_model_is_evaluated_before_it_is_trained(client: FakeClient) -> None:
    plain = train(*build(OPTIMIZERS["adamw"], 0), range(4))
    start(client, None)
    first = build(OPTIMIZERS["adamw"], 0)
    train(*first, range(2))
    start(client, manifest_of(client))
    model, optimizer = build(OPTIMIZERS["adamw"], 9)
    with torch.inference_mode():
        model(torch.zeros(1, 24))
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert not any(tensor.is_inference() for tensor in (*model.parameters(), *states))
    assert train(model, optimizer, range(2, 4)) == plain[2:]


def test_what_a_job_left_is_taken_over_where_it_is(client: FakeClient) -> None:
    start(client, None)
    first = build(OPTIMIZERS["adamw"], 0)
    train(*first, range(2))
    memory = start(client, manifest_of(client)).memory
    model, optimizer = build(OPTIMIZERS["adamw"], 1)
    own = set(client.kinds)
    model(torch.zeros(1, 24))
    attached = set(client.kinds) - own
    large = [p for p in model.parameters() if memory.addresses.manages(p)]
    assert len(large) == 2
    for tensor in (t for p in large for t in (p, *optimizer.state[p].values())):
        places = memory.addresses.element_places(tensor)
        assert not places or set(places) <= attached
    chunks = memory.arenas.chunks()
    memory.pressure.trim_all()  # Frees the chunks in which the parameters were before.
    assert memory.arenas.chunks() < chunks
    assert attached <= set(client.kinds)


def test_what_others_look_at_stays_and_takes_the_content(client: FakeClient) -> None:
    start(client, None)
    first, _ = started = build(OPTIMIZERS["adamw"], 0)
    train(*started, range(2))
    expected = first[0].weight.detach().clone()
    start(client, manifest_of(client))
    model, optimizer = build(OPTIMIZERS["adamw"], 1)
    seen = model[0].weight.detach()
    model(torch.zeros(1, 24))
    assert seen.data_ptr() == model[0].weight.data_ptr()
    assert torch.equal(seen, expected)
    # The chunks of the last step stay until this process has committed a step.
    runtime = runtimes.current()
    assert runtime is not None
    runtime.memory.pressure.trim_all()
    loss = model(torch.ones(1, 24)).sum()
    loss.backward()
    chunks = runtime.memory.arenas.chunks()
    optimizer.step()
    runtime.memory.pressure.trim_all()
    assert runtime.memory.arenas.chunks() < chunks


def test_a_layout_with_less_padding_is_resumed_as_it_is(client: FakeClient) -> None:
    make = OPTIMIZERS["adamw"]
    plain = train(*build(make, 0), range(8))
    start(client, None)
    first = build(make, 0)
    train(*first, range(3))
    at = [p.data_ptr() % CHUNK_BYTES for p in first[0].parameters()]
    assert any(address % GPU_ALIGNMENT_BYTES for address in at)
    # The same job on a GPU: there a new tensor begins at a multiple of 512 bytes.
    client.properties = replace(client.properties, handles_faults=False, device_slots=1000)
    client.lease_budget = 1000
    runtime = start(client, manifest_of(client))
    model, optimizer = build(make, 1)
    assert train(model, optimizer, range(3, 6)) == plain[3:6]
    memory = runtime.memory
    managed = [p for p in model.parameters() if memory.addresses.manages(p)]
    assert [p.data_ptr() % CHUNK_BYTES for p in managed] == [
        a for p, a in zip(first[0].parameters(), at, strict=True) if memory.addresses.manages(p)
    ]
    assert all(p.grad.data_ptr() % GPU_ALIGNMENT_BYTES == 0 for p in managed)
    assert train(model, optimizer, range(6, 8)) == plain[6:]
    # Memory that is freed of the old layout is used by the new one, and nothing overlaps.
    model[1].weight.data = torch.zeros(1)
    more = [nn.Linear(20 + n, 31, bias=False).weight for n in range(20)]
    assert all(p.data_ptr() % GPU_ALIGNMENT_BYTES == 0 for p in more if memory.addresses.manages(p))
    live = memory.arenas.storages.live()
    assert all(end <= start for (_, end), (start, _) in zip(live, live[1:], strict=False))


def saved_tensor(offset_bytes: int) -> SavedTensor:
    return SavedTensor([256], [1], "float32", offset_bytes)


def test_states_of_several_rows_in_one_chunk_are_taken_over_too(client: FakeClient) -> None:
    memory = ManagedMemory(client, LeaseLedger(client))
    place = client.allocate(Kind.OPTIMIZER_STATE, 1)
    parameters = [
        SavedParameter(small_one, {"a": saved_tensor(2048 * n), "b": saved_tensor(2048 * n + 1024)})
        for n, small_one in enumerate([SavedTensor([1], [1], "float32", content="AAAAAA==")] * 2)
    ]
    manifest = StepManifest(client.chunk_ids(place, 1), [SavedOptimizer("Adam", 1, parameters)])
    restored = RestoredStorages(memory, manifest)
    at = [restored.storage(saved_tensor(offset)).data_ptr() for offset in (0, 1024, 2048, 3072)]
    assert at == [at[0], at[0] + 1024, at[0] + 2048, at[0] + 3072]
    assert memory.arenas.chunks() == 1
    del restored
    memory.pressure.trim_all()
    assert memory.arenas.chunks() == 0


def test_a_parameter_and_a_state_are_never_in_one_chunk(client: FakeClient) -> None:
    place = client.allocate(Kind.PARAMETER, 1)
    parameters = [SavedParameter(saved_tensor(0), {"a": saved_tensor(1024)})]
    manifest = StepManifest(client.chunk_ids(place, 1), [SavedOptimizer("Adam", 1, parameters)])
    with pytest.raises(DataLoss, match="a parameter and a state in one chunk"):
        RestoredStorages(ManagedMemory(client, LeaseLedger(client)), manifest)


@pytest.mark.parametrize("offset_bytes", [4096 - 512, 512, 1 << 40])
def test_a_note_of_what_cannot_be_is_data_loss(offset_bytes: int, client: FakeClient) -> None:
    memory = ManagedMemory(client, LeaseLedger(client))
    place = client.allocate(Kind.PARAMETER, 1)
    parameters = [SavedParameter(saved_tensor(offset)) for offset in (0, offset_bytes)]
    manifest = StepManifest(client.chunk_ids(place, 1), [SavedOptimizer("Adam", 1, parameters)])
    with pytest.raises(DataLoss, match="the job's step manifest names 1024 bytes at"):
        RestoredStorages(memory, manifest)


def test_a_step_before_any_forward_pass_takes_the_job_up_as_well(client: FakeClient) -> None:
    start(client, None)
    first = build(OPTIMIZERS["sgd"], 0)
    train(*first, range(2))
    expected = [p.detach().clone() for p in first[0].parameters()]
    start(client, manifest_of(client))
    model, optimizer = build(OPTIMIZERS["sgd"], 1)
    optimizer.step()  # Without gradients, the step changes nothing.
    for parameter, expected_value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, expected_value)


def test_another_model_is_refused_by_the_name_of_the_parameter(client: FakeClient) -> None:
    start(client, None)
    first = build(OPTIMIZERS["adagrad"], 0)
    train(*first, range(1))
    start(client, manifest_of(client))
    model, _ = build(OPTIMIZERS["adagrad"], 0, width=31)
    with pytest.raises(
        FailedPrecondition,
        match=r"parameter 2 \(1.weight\) of Adagrad is \[31, 60\] .*, and in the job \[30, 60\]",
    ):
        model(torch.zeros(1, 24))


def test_another_optimizer_is_refused(client: FakeClient) -> None:
    start(client, None)
    first = build(OPTIMIZERS["adamw"], 0)
    train(*first, range(1))
    start(client, manifest_of(client))
    model, _ = build(OPTIMIZERS["sgd"], 0)
    with pytest.raises(FailedPrecondition, match=r"states are those of AdamW, and .* is SGD"):
        model(torch.zeros(1, 24))


def test_a_tensor_without_elements_is_no_obstacle(client: FakeClient) -> None:
    def with_empty(model: nn.Module) -> torch.optim.Optimizer:
        model.register_parameter("none", nn.Parameter(torch.empty(0, 3)))
        return OPTIMIZERS["adamw"](model)

    start(client, None)
    first = build(with_empty, 0)
    train(*first, range(1))
    start(client, manifest_of(client))
    train(*build(with_empty, 1), range(1, 2))
    assert manifest_of(client).steps == 2


def test_fewer_optimizers_or_parameters_are_refused(client: FakeClient) -> None:
    start(client, None)
    model, optimizer = build(OPTIMIZERS["sgd"], 0)
    other = torch.optim.SGD([nn.Parameter(torch.ones(300))])
    train(model, optimizer, range(1))
    manifest = manifest_of(client)
    assert [len(one.parameters) for one in manifest.optimizers] == [6, 1]
    start(client, manifest)
    again = build(OPTIMIZERS["sgd"], 0)
    with pytest.raises(FailedPrecondition, match="has 2 optimizers, and this script has made 1"):
        again[1].step()
    manifest.optimizers[0].parameters.pop()
    manifest.optimizers.pop()
    start(client, manifest)
    once_more = build(OPTIMIZERS["sgd"], 0)
    with pytest.raises(FailedPrecondition, match="SGD has 5 parameters, and the script's SGD has"):
        once_more[0](torch.zeros(1, 24))
    del other


def test_what_steps_in_the_script_cannot_be_gone_on_with(client: FakeClient) -> None:
    start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    other = torch.optim.Adafactor([nn.Parameter(torch.ones(300))])
    other.step()
    train(model, optimizer, range(1))
    assert manifest_of(client).lost == "Adafactor steps in the script's thread"


def test_what_no_longer_fits_is_lost_before_it_is_changed_in_place(client: FakeClient) -> None:
    start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    train(model, optimizer, range(2))
    later = range(client.begun_parts + 1, client.begun_parts + 100)
    client.fail_part.update(dict.fromkeys(later, ResourceExhausted("full")))
    train(model, optimizer, range(2, 4))
    assert client.committed_steps == 3
    assert manifest_of(client).lost == "AdamW steps in the script's thread"


def test_a_note_that_would_be_too_long_says_so(client: FakeClient) -> None:
    start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    large: list[Any] = [nn.Parameter(torch.zeros(200)) for _ in range(700)]
    optimizer.add_param_group({"params": large})
    train(model, optimizer, range(1))
    assert "bytes of parameters and states are not in chunks" in manifest_of(client).lost


@pytest.mark.parametrize(("on_device", "device"), [(False, "cpu"), (True, "meta")])
def test_what_is_not_in_chunks_returns_to_where_it_was(on_device: bool, device: str) -> None:
    saved = SavedTensor([2], [1], "float32", content="AACAPwAAAEA=", on_device=on_device)
    restored = small(saved, torch.device("meta"))  # Stands for a GPU.
    assert restored.device.type == device
    if not on_device:
        assert restored.tolist() == [1.0, 2.0]


def test_other_notes_are_data_loss() -> None:
    for written in (b"{}", b"", b"\x78\x9c"):
        with pytest.raises(DataLoss, match="the job's step manifest cannot be read"):
            read_manifest(written)


def test_each_step_of_a_rank_is_one_commit_with_all_ranks(client: FakeClient) -> None:
    client.ranks = 2
    start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    train(model, optimizer, range(2))
    assert (client.committed_steps, client.commits_with_all_ranks) == (2, 2)
    # The other ranks wait for a step that changes nothing, and for one in the script's thread.
    optimizer.zero_grad()
    optimizer.step()
    assert client.commits_with_all_ranks == 3
    assert manifest_of(client).steps == 3
    later = range(client.begun_parts + 1, client.begun_parts + 100)
    client.fail_part.update(dict.fromkeys(later, ResourceExhausted("full")))
    train(model, optimizer, range(2, 4))
    assert client.commits_with_all_ranks == 5
    assert manifest_of(client).lost == "AdamW steps in the script's thread"


def test_a_step_of_a_rank_beside_which_a_thread_writes_is_made_in_place(
    client: FakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client.ranks = 2
    runtime = start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    average = nn.Module()
    average.value = nn.Parameter(torch.ones(CHUNK_BYTES // 8), requires_grad=False)
    places = runtime.memory.addresses.element_places
    assert set(places(average.value)) & set().union(*map(places, model.parameters()))
    train(model, optimizer, range(1))
    client.before_part = lambda: average.value.data.fill_(2)
    train(model, optimizer, range(1, 2))
    assert "another thread writes to chunks" in capfd.readouterr().err
    # The other ranks wait for this commit, which changes nothing.
    assert client.commits_with_all_ranks == 2
    assert average.value.eq(2).all()


def test_one_process_commits_with_no_other(client: FakeClient) -> None:
    start(client, None)
    model, optimizer = build(OPTIMIZERS["adamw"], 0)
    train(model, optimizer, range(1))
    optimizer.zero_grad()
    optimizer.step()
    assert (client.committed_steps, client.commits_with_all_ranks) == (1, 0)


class Wire:
    """An exchange between two nodes, one after the other: what the first sends the second gets."""

    def __init__(self, manifest: StepManifest, sent: list[torch.Tensor], *, sends: bool) -> None:
        self.manifest, self.agreement = manifest, Agreement("all nodes", 0, (1,))
        self.sends, self.receives = sends, not sends
        self.checked: list[torch.optim.Optimizer] = []
        self._sent = sent

    def check(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.checked += optimizers

    def broadcast(self, tensor: torch.Tensor) -> None:
        if self.sends:
            self._sent.append(tensor.clone())
        else:
            tensor.copy_(self._sent.pop(0))


def go_on_from(wire: Wire) -> None:
    runtime = runtimes.current()
    assert runtime is not None
    runtime.resumed_job.go_on_from(wire)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_node_that_has_nothing_goes_on_with_what_another_one_sends(
    name: str, client: FakeClient
) -> None:
    make = OPTIMIZERS[name]
    plain = train(*build(make, 0), range(6))
    start(client, None)
    first = build(make, 0)
    train(*first, range(3))
    manifest, sent = manifest_of(client), list[torch.Tensor]()
    start(client, manifest)
    go_on_from(wire := Wire(manifest, sent, sends=True))
    sender = build(make, 7)
    assert train(*sender, range(3, 6)) == plain[3:]
    assert wire.checked == [sender[1]]
    assert sent
    other = FakeClient()
    start(other, None)
    go_on_from(Wire(manifest, sent, sends=False))
    receiver = build(make, 8)
    assert train(*receiver, range(3, 6)) == plain[3:]
    assert not sent
    assert (manifest_of(other).steps, manifest_of(other).group) == (6, "all nodes")


def test_a_model_that_was_used_before_nodes_agree_is_refused(client: FakeClient) -> None:
    start(client, None)
    first = build(OPTIMIZERS["sgd"], 0)
    train(*first, range(1))
    manifest = manifest_of(client)
    start(client, manifest)
    model, _optimizer = build(OPTIMIZERS["sgd"], 0)
    model(torch.zeros(1, 24))
    with pytest.raises(FailedPrecondition, match="used before torch.distributed.init_process_grou"):
        go_on_from(Wire(manifest, [], sends=True))
