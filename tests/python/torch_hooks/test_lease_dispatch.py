"""Lease dispatch, with a fake client that has no page faults, as on a GPU."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient, one_chunk_each
from memtide._capi.client import CUDA_SETTINGS, Access, Places
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.on_gpu import device_guards
from memtide._torch_hooks.on_gpu.lease_dispatch import from_own_gpu
from memtide._torch_hooks.own_mode import OwnMode
from memtide._torch_hooks.runtime import Runtime
from memtide._util.hook_costs import SAMPLED
from memtide.errors import FailedPrecondition, ResourceExhausted
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    handles_faults = getattr(request, "param", False)
    yield runtimes.start(
        FakeClient(handles_faults=handles_faults), Observer(), adopt_everything=True
    )
    runtimes.stop()


def leased_for(runtime: Runtime, parameter: torch.Tensor) -> list[Access]:
    place = runtime.memory.addresses.span_places(parameter)[0]
    return [access for places, access in runtime.client.acquired if place in places]


def test_every_operation_leases_what_it_reads_and_what_it_writes(runtime: Runtime) -> None:
    first, second = one_chunk_each(2)
    runtime.client.acquired.clear()
    second.add_(first)
    assert leased_for(runtime, first) == [Access.READ]
    assert leased_for(runtime, second) == [Access.WRITE]
    assert runtime.client.in_use() == set()
    assert second[5].item() == 1.0


def test_a_view_leases_nothing_and_its_use_what_is_under_it(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()
    view = parameter.view(32, -1)[3:5].t()
    assert runtime.client.acquired == []
    view.zero_()
    assert leased_for(runtime, parameter) == [Access.WRITE]


def test_operations_are_counted_views_are_not_and_one_of_a_sample_is_measured(
    runtime: Runtime,
) -> None:
    (parameter,) = one_chunk_each(1)
    costs = runtime.memory.costs
    costs.operations = costs.dispatch_ns = 0
    for number in range(SAMPLED):
        assert (costs.operations, costs.dispatch_ns) == (number, 0)
        parameter.view(-1)[3:5].zero_()
    assert costs.operations == SAMPLED
    assert costs.dispatch_ns > 0


def test_gradients_that_move_are_counted(runtime: Runtime) -> None:
    module = nn.Linear(64, 64)
    module(torch.ones(1, 64)).sum().backward()
    costs = runtime.memory.costs
    assert costs.gradients == 1  # The bias is too small for a chunk.
    assert costs.gradient_ns > 0


def test_a_class_of_the_scripts_own_over_the_same_memory_is_leased(runtime: Runtime) -> None:
    class Own(torch.Tensor):
        pass

    (parameter,) = one_chunk_each(1)
    own = parameter.detach().as_subclass(Own)
    runtime.client.acquired.clear()
    own.add_(1)
    assert leased_for(runtime, parameter) == [Access.WRITE]


def test_an_operation_that_raises_holds_nothing_afterwards(runtime: Runtime) -> None:
    first, second = one_chunk_each(2)
    with pytest.raises(RuntimeError):
        torch.mm(first.view(1, -1), second.view(1, -1))
    assert runtime.client.in_use() == set()


def test_lists_of_more_than_can_be_leased_are_worked_off_in_pieces(runtime: Runtime) -> None:
    parameters = one_chunk_each(20)
    runtime.client.acquired.clear()
    torch._foreach_add_(parameters, 1.0)
    assert (
        len(runtime.client.acquired) == 4
    ), "of 8 chunks at once, quarters are the largest that fit"
    assert [p[0].item() for p in parameters] == [float(index + 1) for index in range(20)]
    norms = torch._foreach_norm(parameters)
    assert [norm.item() for norm in norms] == [p.clone().norm().item() for p in parameters]


def test_one_operation_over_more_than_can_be_leased_says_what_to_do(runtime: Runtime) -> None:
    parameters = one_chunk_each(10)
    with pytest.raises(
        ResourceExhausted, match=r"aten::cat touches 10 chunks .* may lease 8; enlarge"
    ):
        torch.cat(parameters)


def fused_step(*lists: list[torch.Tensor], amsgrad: bool) -> None:
    """A fused AdamW step of parameters, gradients, states and step numbers."""
    torch._fused_adamw_(
        *lists,
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=amsgrad,
        maximize=False,
    )


def long_parameters(count: int, chunks: int) -> list[nn.Parameter]:
    """Managed parameters whose elements begin within a chunk and end in another."""
    generator = torch.Generator().manual_seed(0)
    holder = nn.Module()
    for index in range(count):
        length = chunks * CHUNK_BYTES // 4 + 696
        drawn = nn.Parameter(torch.randn(length, generator=generator), requires_grad=False)
        holder.register_parameter(f"p{index}", drawn)
    return list(holder.parameters())


def test_one_index_of_lists_over_more_than_can_be_leased_is_cut(runtime: Runtime) -> None:
    (long,) = long_parameters(1, 10)
    parts = long.split(1000)
    expected = [part + 1.0 for part in parts]
    version = long._version
    torch._foreach_add_([long], 1.0)
    assert long._version == version + 1
    assert all(torch.equal(*pair) for pair in zip(parts, expected, strict=True))


def test_a_fused_step_of_one_parameter_over_more_than_can_be_leased_is_cut(
    runtime: Runtime,
) -> None:
    managed = long_parameters(6, 3)[1:]
    plain = [parameter.clone() for parameter in managed]
    for tensors in (managed, plain):
        for second_moment in tensors[3:]:
            second_moment.abs_()
        for number in (1.0, 2.0):
            step = [torch.tensor(number)]
            fused_step(*([tensor] for tensor in tensors), step, amsgrad=True)
    for ours, theirs in zip(managed, plain, strict=True):
        assert torch.equal(ours.clone(), theirs)
    assert runtime.client.in_use() == set()


def test_an_operation_over_one_tensor_is_cut_and_returns_it(runtime: Runtime) -> None:
    managed = long_parameters(3, 4)
    expected = managed[0].clone().addcdiv_(managed[1].clone(), managed[2].clone(), value=0.5)
    first = managed[0]
    assert first.addcdiv_(managed[1], managed[2], value=0.5) is first
    assert torch.equal(first.clone(), expected)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda a, b: a.mul_(torch.tensor(0.5)).add_(b), id="a number"),
        pytest.param(
            lambda a, b: a.view(8, -1).mul_(torch.full((1, 1), 0.5)).add_(b.view(8, -1)),
            id="one element",
        ),
        pytest.param(lambda a, b: a.view(8, -1).t().mul_(b.view(8, -1).t()), id="transposed"),
    ],
)
def test_layouts_that_can_be_cut_are_cut(runtime: Runtime, operation: Any) -> None:
    managed = long_parameters(2, 20)
    plain = [torch.cat([part.clone() for part in p.split(1000)]) for p in managed]
    runtime.client.acquired.clear()
    operation(*managed)
    assert len(runtime.client.acquired) > 20
    operation(*plain)
    parts = zip(managed[0].split(1000), plain[0].split(1000), strict=True)
    assert all(torch.equal(*pair) for pair in parts)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        pytest.param(lambda a, b: a.view(8, -1).t().mul_(b.view(-1, 8)), "mul_", id="strides"),
        pytest.param(lambda a, b: a.view(8, -1).mul_(b.view(8, -1)[0]), "mul_", id="broadcast"),
        pytest.param(lambda a, b: torch.add(a, b), "add", id="a new tensor"),
        pytest.param(lambda a, b: a.cumsum_(0), "cumsum_", id="running sum"),
        pytest.param(lambda a, b: a[::2].mul_(b[::2]), "mul_", id="gaps"),
        pytest.param(lambda a, b: a[:-2000].add_(a[2000:]), "add_", id="overlapping"),
        pytest.param(
            lambda a, b: torch._foreach_addcmul_(
                *[list(t[:20000].split(1000)) for t in (a, a, b)], torch.full((20,), 2.0)
            ),
            "_foreach_addcmul_",
            id="scalars in a tensor",
        ),
    ],
)
def test_what_cannot_be_cut_says_what_to_do(runtime: Runtime, operation: Any, name: str) -> None:
    managed = long_parameters(2, 20)
    before = managed[0].view(2, -1)[0, :16].clone()
    with pytest.raises(
        ResourceExhausted, match=rf"aten::{name}\S* touches .* may lease 8; enlarge"
    ):
        operation(*managed)
    assert torch.equal(managed[0].view(2, -1)[0, :16].clone(), before)


def test_uses_that_only_make_things_fast_give_way(runtime: Runtime) -> None:
    parameters = one_chunk_each(8)
    for parameter in parameters[:5]:
        places = Places(runtime.memory.addresses.span_places(parameter))
        assert runtime.ledger.lease(places, Access.READ) is not None
    assert torch.stack(parameters[3:]).shape == (5, CHUNK_BYTES // 4)


def test_other_threads_have_the_net_too(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()
    thread = threading.Thread(target=parameter.zero_)
    thread.start()
    thread.join()
    assert leased_for(runtime, parameter) == [Access.WRITE]


def test_a_thread_of_the_scripts_own_class_has_it_as_well(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()

    class Own(threading.Thread):
        def run(self) -> None:
            parameter.zero_()

    thread = Own()
    thread.start()
    thread.join()
    assert leased_for(runtime, parameter) == [Access.WRITE]


def test_printing_leases_what_it_prints(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()
    assert "0." in str(parameter[:3])
    assert leased_for(runtime, parameter) != []


def test_operations_of_tensors_made_of_others_pass_lease_dispatch(runtime: Runtime) -> None:
    first, second = one_chunk_each(2)
    pair = TwoTensor(first.detach(), second.detach())
    runtime.client.acquired.clear()
    pair.add_(1)
    assert leased_for(runtime, first) == [Access.WRITE]
    assert leased_for(runtime, second) == [Access.WRITE]


class Asking(torch.optim.SGD):
    """Runs an operation on fake tensors first, as torch does in a step of FSDP's parameters."""

    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            with FakeTensorMode() as fake:
                assert torch.zeros_like(fake.from_tensor(parameter)).shape == parameter.shape
        super().step()


@pytest.mark.parametrize("runtime", [False, True], ids=["a net", "faults"], indirect=True)
def test_tensors_without_memory_are_left_to_torch(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    parameter.grad = torch.ones_like(parameter)
    Asking([parameter], lr=0.5).step()
    assert parameter[0].item() == -0.5


def test_operations_that_take_functions_lease_their_tensors(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()
    result = torch.ops.higher_order.wrap_with_set_grad_enabled(False, lambda x: x * 2, parameter)
    assert result[0][3].item() == 0.0 if isinstance(result, tuple) else result[3].item() == 0.0
    assert leased_for(runtime, parameter) != []


def test_gradients_are_unscaled_in_pieces(runtime: Runtime) -> None:
    gradients = one_chunk_each(12)
    found, scale = torch.zeros(1), torch.full((1,), 0.5)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
    assert [gradient[0].item() for gradient in gradients] == [index / 2 for index in range(12)]
    assert found.item() == 0.0


def test_a_fused_step_only_reads_gradients_that_are_not_scaled(runtime: Runtime) -> None:
    gradient, *others = one_chunk_each(4)
    runtime.client.acquired.clear()
    lists = [[other] for other in others]
    step = [torch.tensor(1.0)]
    fused_step(lists[0], [gradient], lists[1], lists[2], [], step, amsgrad=False)
    assert leased_for(runtime, gradient) == [Access.READ]
    assert leased_for(runtime, others[0]) == [Access.WRITE]


def test_what_cannot_work_says_so(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FailedPrecondition, match="CUDA graphs"):
        torch.cuda.CUDAGraph.capture_begin(None)
    monkeypatch.setattr(OwnMode, "compiles", False)
    with pytest.warns(UserWarning, match=r"torch\.compile has no effect"):
        torch.compile(nn.Linear(2, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(FailedPrecondition, match="CUDA_VISIBLE_DEVICES=3 memtide run"):
        device_guards.check_visible_devices(None)


def test_data_parallel_is_refused_and_says_what_to_use(runtime: Runtime) -> None:
    with pytest.raises(FailedPrecondition, match=r"on 2 GPUs .* --nproc-per-node=2"):
        nn.DataParallel(nn.Linear(4, 4)).replicate(nn.Linear(4, 4), [0, 1])


class OnGpu:
    """A tensor on a GPU, as far as a copy looks at it."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def to(self, device: torch.device) -> Any:
        assert device.index is not None
        return OnGpu(device.index)


def test_a_copy_to_a_chunk_from_another_gpu_goes_through_the_memory_of_its_own() -> None:
    chunk, there, on_host = OnGpu(0), OnGpu(1), torch.zeros(1)
    target, source, *rest = from_own_gpu(chunk, there, True)
    assert (target, source.device, rest) == (chunk, chunk.device, [True])
    assert from_own_gpu(chunk, on_host) == (chunk, on_host), "which torch copies on the chunk's GPU"


def test_a_refused_graph_leaves_the_current_stream_as_it_was(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[str] = []

    class Stream:
        def __enter__(self) -> None:
            streams.append("its own")

        def __exit__(self, *_error: object) -> None:
            streams.pop()

    graph = object.__new__(torch.cuda.graph)  # Its constructor makes a stream of a GPU.
    vars(graph).update(
        cuda_graph=SimpleNamespace(
            capture_begin=lambda **_: torch.cuda.CUDAGraph.capture_begin(None)
        ),
        stream_ctx=Stream(),
        pool=(),
        capture_error_mode="global",
        _enable_annotations=False,
    )
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    with pytest.raises(FailedPrecondition, match="CUDA graphs"):
        graph.__enter__()
    assert streams == []


@pytest.mark.parametrize("name", CUDA_SETTINGS)
def test_a_setting_that_comes_too_late_says_where_to_put_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    client = FakeClient(handles_faults=False)
    monkeypatch.setenv(name, "1")
    try:
        with pytest.warns(UserWarning, match=f"{name} to '1'.*{name}=1 memtide run") as warned:
            runtimes.start(client, Observer(), adopt_everything=True)
        assert sum(name in str(warning.message) for warning in warned) == 1
    finally:
        runtimes.stop()


def test_a_setting_after_the_import_of_torch_is_seen_at_the_first_step(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    optimizer = torch.optim.SGD(one_chunk_each(1), lr=0.1)
    with pytest.warns(UserWarning, match="CUDA_LAUNCH_BLOCKING"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


def test_a_setting_that_was_there_before_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    runtimes.stop()


@pytest.mark.parametrize("module", [torch.cuda, torch.cuda.random])
def test_a_forked_child_that_uses_the_gpu_reads_what_to_do(runtime: Runtime, module: Any) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            module._lazy_init()
            answer = "no error"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 4096).decode()
    os.close(read)
    os.close(write)
    assert answer.startswith("FailedPrecondition: this process was forked after memtide")
    assert "get_context('spawn')" in answer


def test_the_process_itself_goes_on_to_use_the_gpu(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    torch.cuda._lazy_init()


def test_backward_runs_under_lease_dispatch(runtime: Runtime) -> None:
    layer = nn.Linear(32, 32, bias=False)
    runtime.client.acquired.clear()
    layer(torch.ones(2, 32)).sum().backward()
    assert Access.READ in leased_for(runtime, layer.weight)
    assert layer.weight.grad is not None
    assert runtime.memory.addresses.manages(layer.weight.grad)
    torch.testing.assert_close(layer.weight.grad.clone(), torch.full((32, 32), 2.0))
