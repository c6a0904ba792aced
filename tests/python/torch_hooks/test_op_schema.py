"""The tensors that operations write, where their schemas do not say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_client import CHUNK_BYTES, FakeClient, one_chunk_each
from memtide._capi.client import Access
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.op_schema import run, writes_arguments, written_arguments
from memtide._torch_hooks.runtime import Runtime
from torch.utils._python_dispatch import TorchDispatchMode

_ELEMENTS = CHUNK_BYTES // 4


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    runtimes.stop()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def library() -> Iterator[Any]:
    """A library of operators, as an extension has."""
    with torch.library._scoped_library("memtide_test", "FRAGMENT") as library:
        yield library


def accesses(runtime: Runtime, *tensors: torch.Tensor) -> list[set[Access]]:
    """How each tensor was leased since `acquired` was cleared."""
    return [
        {
            access
            for places, access in runtime.client.acquired
            if runtime.memory.addresses.span_places(tensor)[0] in places
        }
        for tensor in tensors
    ]


# By operation of c10d, the tensors that it writes.
_WRITTEN = {
    "allreduce_": {"tensors", "sparse_indices"},
    "allreduce_coalesced_": {"tensors"},
    "broadcast_": {"tensors"},
    "reduce_": {"tensors"},
    "recv_": {"tensors"},
    "recv_any_source_": {"tensors"},
    "send": set(),
    "allgather_": {"output_tensors"},
    "_allgather_base_": {"output_tensor"},
    "allgather_coalesced_": {"output_lists"},
    "allgather_into_tensor_coalesced_": {"outputs"},
    "reduce_scatter_": {"output_tensors"},
    "_reduce_scatter_base_": {"output_tensor"},
    "reduce_scatter_tensor_coalesced_": {"outputs"},
    "alltoall_": {"output_tensors"},
    "alltoall_base_": {"output"},
    "gather_": {"output_tensors"},
    "scatter_": {"output_tensors"},
}


def tensors_of(operation: Any) -> set[str]:
    return {a.name for a in operation._schema.arguments if "Tensor" in str(a.type)}


@pytest.mark.parametrize("name", _WRITTEN)
def test_a_collective_writes_its_outputs_and_reads_its_inputs(name: str) -> None:
    operation = getattr(torch.ops.c10d, name).default
    _, written = written_arguments(operation)
    assert written & tensors_of(operation) == _WRITTEN[name]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("all_reduce", set()),
        ("all_reduce_", {"input"}),
        ("all_gather_into_tensor", set()),
        ("reduce_scatter_tensor", set()),
        ("wait_tensor", set()),
        ("irecv", {"tensor"}),
        ("batch_p2p_ops", {"tensors"}),
    ],
)
def test_functional_collectives_write_only_what_they_receive_in_place(
    name: str, written: set[str]
) -> None:
    packet = getattr(torch.ops._c10d_functional, name, None)
    if packet is None:
        # The oldest torch that is supported lacks some of these collectives, and so needs no table
        # row for them. The pinned torch has all.
        pytest.skip("not in this torch")
    assert written_arguments(packet.default)[1] & tensors_of(packet.default) == written


def test_shards_that_fsdp_gathers_are_only_read() -> None:
    import torch.distributed.fsdp  # noqa: F401  It defines the operation.

    operation = torch.ops.fsdp.all_gather_copy_in.default
    assert written_arguments(operation)[1] & tensors_of(operation) == {"all_gather_output"}


@pytest.mark.usefixtures("alone")
def test_collectives_lease_what_they_write_for_writing(runtime: Runtime) -> None:
    output, source = one_chunk_each(2)
    runtime.client.acquired.clear()
    dist.all_reduce(source.data)
    dist.broadcast(source.data, 0)
    assert accesses(runtime, source) == [{Access.WRITE}]
    runtime.client.acquired.clear()
    dist.all_gather_into_tensor(output.data, source.data)
    assert accesses(runtime, output, source) == [{Access.WRITE}, {Access.READ}]
    assert output[5].item() == 1.0


def test_an_extension_that_marks_nothing_writes_all_its_tensors(
    runtime: Runtime, library: Any
) -> None:
    library.define("scale_by(Tensor x, Tensor by) -> ()")

    def scale_by(x: torch.Tensor, by: torch.Tensor) -> None:
        x.detach().mul_(by[2])

    library.impl("scale_by", scale_by, "CompositeExplicitAutograd")
    first, second = one_chunk_each(2)
    runtime.client.acquired.clear()
    torch.ops.memtide_test.scale_by(second, first)
    assert accesses(runtime, first, second) == [{Access.WRITE}] * 2
    assert second[7].item() == 0.0


def test_an_extension_that_marks_what_it_writes_reads_the_rest(
    runtime: Runtime, library: Any
) -> None:
    library.define("add_to(Tensor(a!) x, Tensor more) -> ()")

    def add_to(x: torch.Tensor, more: torch.Tensor) -> None:
        x.detach().add_(more)

    library.impl("add_to", add_to, "CompositeExplicitAutograd")
    first, second = one_chunk_each(2)
    runtime.client.acquired.clear()
    torch.ops.memtide_test.add_to(first, second)
    assert accesses(runtime, first, second) == [{Access.WRITE}, {Access.READ}]
    assert first[7].item() == 1.0


def test_running_statistics_are_written(runtime: Runtime) -> None:
    mean, variance, weight = one_chunk_each(3)
    runtime.client.acquired.clear()
    batch = torch.randn(2, _ELEMENTS)
    torch.native_batch_norm(batch, weight, None, mean, variance, True, 0.1, 1e-5)
    assert accesses(runtime, mean, variance, weight) == [
        {Access.WRITE},
        {Access.WRITE},
        {Access.READ},
    ]


@pytest.mark.parametrize("name", ["native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"])
def test_each_librarys_batch_norm_writes_running_statistics(name: str) -> None:
    operation = getattr(torch.ops.aten, name).default
    assert written_arguments(operation) == (frozenset({3, 4}), {"running_mean", "running_var"})
    backward = getattr(torch.ops.aten, f"{name}_backward").default
    assert not writes_arguments(backward)


def test_torchs_own_operators_write_what_they_mark() -> None:
    aten = torch.ops.aten
    assert not writes_arguments(aten.mm.default)
    assert written_arguments(aten.add_.Tensor)[1] == {"self"}
    assert written_arguments(aten.mm.out)[1] == {"out"}
    assert writes_arguments(torch.ops.higher_order.cond)


class _Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: torch._foreach_add_(tensors, 1.0),
        lambda tensors: torch._foreach_lerp_(tensors, tensors, 0.5),
        lambda tensors: torch._foreach_zero_(tensors),
        lambda tensors: torch._foreach_add(tensors, 1.0),
        lambda tensors: tensors[0].mul_(2),
    ],
)
def test_writes_below_a_mode_are_counted_as_without_one(
    change: Callable[[list[torch.Tensor]], Any],
) -> None:
    plain, seen = ([torch.ones(3), torch.ones(4)] for _ in range(2))
    change(plain)
    with _Seeing():
        change(seen)
    assert [t._version for t in seen] == [t._version for t in plain]


def test_lists_of_inference_tensors_have_no_versions() -> None:
    with torch.inference_mode():
        tensors = [torch.ones(3)]
        with _Seeing():
            torch._foreach_add_(tensors, 1.0)
        assert tensors[0].tolist() == [2.0] * 3
