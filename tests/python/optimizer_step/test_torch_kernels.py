"""Steps that torch's own functions compute in parts have the bits of a plain step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._optimizer_step import executor, self_check, torch_tiles
from memtide._optimizer_step.partition import Batch, Geometry, Part
from memtide._optimizer_step.torch_functional import FORMS, FunctionalSignature, torch_options_of
from memtide._optimizer_step.torch_kernels import TorchKernels
from memtide._optimizer_step.torch_options import TensorNumber, TorchOptions
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide.errors import ResourceExhausted
from offloaded_loops import MORE_OPTIMIZERS, OPTIMIZERS, assert_same, plainly, trained_by
from torch.optim import adam, sgd
from torch.utils._python_dispatch import TorchDispatchMode

_ADAM = next(form for form in FORMS if form.name == "adam")
_SGD = next(form for form in FORMS if form.name == "sgd")


@pytest.fixture
def client() -> Iterator[FakeClient]:
    client = FakeClient(lease_budget=10)
    yield client
    runtimes.stop()


@pytest.mark.parametrize("name", [*OPTIMIZERS, *MORE_OPTIMIZERS])
def test_steps_have_the_bits_of_plain_ones(client: FakeClient, name: str) -> None:
    plain = plainly(functools.partial(trained_by, name))
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    ours = trained_by(name)
    assert_same(ours, plain)
    assert client.committed_steps == 4
    assert not runtime.offloaded.parts.here


def test_a_script_s_default_type_changes_no_bit(client: FakeClient) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        plain = plainly(functools.partial(trained_by, "adamw fused"))
        runtimes.start(client, Observer(), adopt_everything=True)
        assert_same(trained_by("adamw fused"), plain)
    finally:
        torch.set_default_dtype(torch.float32)
    assert client.committed_steps == 4


class Space:
    """A client whose large chunks hold a tensor each, and their shadow chunks, all in memory of
    their own."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.geometry = Geometry(2**40, 2**20)
        self.addresses = [self.geometry.chunk(n)[0] for n in range(len(tensors))]
        self.shadows = {n: n + len(tensors) for n in range(len(tensors))}
        self._written = tensors
        self.most_chunks = 0  # At a time.
        self.share = 100  # Chunks that may be lent at a time.
        self._new = [torch.full_like(tensor, math.nan) for tensor in tensors]

    def new(self) -> list[torch.Tensor]:
        """The tensors that the shadow chunks hold."""
        return self._new

    def start_part(self, reads: list[int], writes: list[int]) -> tuple[int, list[int]]:
        if len(reads) + len(writes) > self.share:
            raise ResourceExhausted(f"the job's share can hold {self.share}")
        self.most_chunks = max(self.most_chunks, len(reads) + len(writes))
        chunks = [*self._written, *self._new]
        return 1, [chunks[place].data_ptr() for place in (*reads, *writes)]

    def end_part(self, part: int, *, computed: bool, non_finite: int) -> None:
        assert computed

    def part(self, options: TorchOptions, first: int, end: int) -> Batch:
        """A batch of some elements of all tensors, of which the first one is the gradient."""
        elements = self._written[0].numel()
        spans = [
            (at + first * tensor.itemsize, at + end * tensor.itemsize)
            for at, tensor in zip(self.addresses, self._written, strict=True)
        ]
        part = Part(
            options,
            end - first,
            spans[0][0],
            tuple(spans[1:]),
            first=first,
            left=elements - end,
        )
        return Batch([part], reads={0}, writes=set(range(1, len(spans))))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def arguments_of(
    form: FunctionalSignature, tensors: list[torch.Tensor], flags: dict[str, Any]
) -> dict[str, Any]:
    """A call that steps tensors[1] with the gradient tensors[0] and the states that follow."""
    gradient, parameter, *states = tensors
    lists: dict[str, Any] = {name: [] for name in form.states}
    lists.update({n: [s] for n, s in zip(form.states, states, strict=False)})
    if form.steps is not None:
        lists[form.steps] = [torch.tensor(6.0)]
    return {"params": [parameter], form.gradients: [gradient], **lists, **flags}


_ADAM_FLAGS = {
    **{"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    **{"amsgrad": False, "maximize": False, "decoupled_weight_decay": True},
}
_SGD_FLAGS = {
    **{"lr": 1e-3, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01},
    **{"nesterov": True, "maximize": False},
}


@pytest.mark.parametrize("room", [2, 100])  # Chunks at a time.
@pytest.mark.parametrize("way", ["single", "foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("form", "original", "states", "flags"),
    [(_ADAM, adam.adam, 2, _ADAM_FLAGS), (_SGD, sgd.sgd, 1, _SGD_FLAGS)],
    ids=["adam", "sgd"],
)
def test_any_cut_has_the_bits_of_the_whole(
    form: FunctionalSignature,
    original: Callable[..., None],
    states: int,
    flags: dict[str, Any],
    kind: torch.dtype,
    way: str,
    room: int,
    two_threads: None,
) -> None:
    if (form, kind, way) == (_SGD, torch.bfloat16, "fused"):
        pytest.skip("torch's fused momentum differs from run to run in bf16")
    torch.manual_seed(0)
    if form is _SGD:
        flags = {**flags, "grad_scale": None, "found_inf": None}
    flags = {**flags, "foreach": way == "foreach", "fused": way == "fused"}
    for elements in [*range(1, 68), 999, 32767, 70_003]:
        tensors = [torch.randn(elements).abs().to(kind) for _ in range(states + 2)]
        cut = elements * 3 // 7
        space = Space(tensors)
        whole = arguments_of(form, [tensor.clone() for tensor in tensors], flags)
        options = torch_options_of(form, original, whole)
        assert options is not None
        formats = dict.fromkeys(("parameter_format", "gradient_format", "state_format"))
        options = replace(options, step=7, **dict.fromkeys(formats, kind))
        original(**whole)
        kernels = TorchKernels(space, space.geometry)  # type: ignore[arg-type]
        for first, end in ((0, cut), (cut, elements)):
            if first < end:
                kernels.make(space.part(options, first, end), space.shadows, room)
        assert space.most_chunks <= room
        expected = [whole["params"][0], *(whole[name][0] for name in form.states if whole[name])]
        for ours, plain in zip(space.new()[1:], expected, strict=True):
            assert torch.equal(ours, plain), (elements, cut)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *MORE_OPTIMIZERS])
def test_parts_of_other_bits_have_the_values_of_a_plain_step(
    client: FakeClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_tiles, "_FREE_TILE", 100)
    plain = plainly(functools.partial(trained_by, name))
    monkeypatch.setattr(executor, "type_name", lambda _: "cuda")
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    runtime.offloaded.always = True
    ours = trained_by(name)
    assert client.committed_steps == 4 and not runtime.offloaded.parts.here
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class Seen(TorchDispatchMode):
    """Counts the operations of its thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_plain_bits", [True, False])
@pytest.mark.parametrize("room", [2, 100])
def test_no_mode_of_the_script_sees_a_part(room: int, has_plain_bits: bool) -> None:
    tensors = [torch.randn(999).abs() for _ in range(4)]
    flags = {**_ADAM_FLAGS, "foreach": False, "fused": False}
    whole = arguments_of(_ADAM, [tensor.clone() for tensor in tensors], flags)
    options = torch_options_of(_ADAM, adam.adam, whole)
    assert options is not None
    adam.adam(**whole)
    space = Space(tensors)
    kernels = TorchKernels(
        space,  # type: ignore[arg-type]
        space.geometry,
        has_plain_bits=has_plain_bits,
    )
    batch = space.part(replace(options, step=7), 0, 999)
    with torch.device("meta"), Seen() as seen:
        kernels.make(batch, space.shadows, room)
    assert seen.count == 0
    kernels.close()
    expected = whole["params"][0]
    if has_plain_bits:
        assert torch.equal(space.new()[1], expected)
    else:
        torch.testing.assert_close(space.new()[1], expected)


def test_a_rate_in_a_tensor_of_a_gpu_is_one_of_the_cpu_in_parts() -> None:
    class OnAGpu(torch.Tensor):
        @property
        def is_cpu(self) -> bool:
            return False

    arguments = arguments_of(_ADAM, [torch.ones(1)] * 4, _ADAM_FLAGS)
    arguments["lr"] = torch.tensor(0.5).as_subclass(OnAGpu)
    options = torch_options_of(_ADAM, adam.adam, arguments)
    assert options is not None
    assert dict(options.numbers)["lr"] == TensorNumber(0.5, torch.float32)
    assert TensorNumber(0.5, torch.float32).tensor().is_cpu


@pytest.mark.parametrize("rate", [torch.tensor([0.5]), torch.tensor(2)])
def test_numbers_that_would_have_other_bits_are_used_where_all_have(rate: torch.Tensor) -> None:
    arguments = arguments_of(_ADAM, [torch.ones(1)] * 4, _ADAM_FLAGS) | {"lr": rate}
    assert torch_options_of(_ADAM, adam.adam, arguments) is None
    options = torch_options_of(_ADAM, adam.adam, arguments, has_plain_bits=False)
    assert options is not None and dict(options.numbers)["lr"] == rate.item()


def test_modes_of_threads_keep_no_step_out_of_parts_where_bits_are_others_anyway() -> None:
    arguments = arguments_of(_ADAM, [torch.ones(1)] * 4, _ADAM_FLAGS)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    try:
        assert torch_options_of(_ADAM, adam.adam, arguments) is None
        assert torch_options_of(_ADAM, adam.adam, arguments, has_plain_bits=False) is not None
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("left", [0, 5, 70_000])
@pytest.mark.parametrize(("first", "elements"), [(0, 1), (63, 2), (17, 100_000), (64, 32704)])
def test_tiles_cover_a_part_once_and_begin_at_whole_vectors(
    first: int, elements: int, left: int, threads: int
) -> None:
    options = torch_options_of(_SGD, sgd.sgd, arguments_of(_SGD, [torch.ones(1)] * 3, _SGD_FLAGS))
    assert options is not None
    part = Part(options, elements, 0, ((0, 0),), first=first, left=left)
    total = first + elements + left
    loops = 1 if total < 32768 else min(threads, -(-total // 32768))
    loop = -(-total // loops)
    done = 0
    for tile in torch_tiles.tiles_of(part, threads):
        assert tile.first == done and tile.count and tile.elements < 32768
        begins = first + done - tile.zeros_before
        assert begins // loop == (first + done + tile.count - 1) // loop, "one thread has it"
        assert begins % loop % 64 == 0
        ends = begins + tile.elements
        assert (ends - begins // loop * loop) % 64 == 0 or ends % loop == 0 or ends == total
        done += tile.count
    assert done == elements


@pytest.mark.parametrize("name", ["adamw groups", "sgd nesterov"])
def test_a_torch_with_other_bits_in_tiles_steps_whole_tensors(
    client: FakeClient, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plain = plainly(functools.partial(trained_by, name))
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    monkeypatch.setattr(
        self_check, "step_in_tiles", lambda *arguments: arguments[3][0].fill_(math.nan)
    )
    assert_same(trained_by(name), plain)
    assert client.begun_parts == 0 and runtime.offloaded.parts.here
    printed = capsys.readouterr().err
    assert printed.count("gives other bits in parts") == 1


def test_the_check_sees_a_wrong_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = arguments_of(_ADAM, [torch.ones(1)] * 4, _ADAM_FLAGS | {"fused": True})
    options = torch_options_of(_ADAM, adam.adam, arguments)
    assert options is not None
    formats = dict.fromkeys(("parameter_format", "gradient_format", "state_format"))
    options = replace(options, step=7, **dict.fromkeys(formats, torch.float32))
    assert self_check.SelfCheck().agrees(options, 3)
    take = torch_tiles._Tile.take
    monkeypatch.setattr(
        torch_tiles._Tile, "take", lambda tile, to, of: take(tile, to, of.nextafter(of + 1))
    )
    assert not self_check.SelfCheck().agrees(options, 3)


def test_a_part_has_fewer_chunks_at_a_time_where_the_share_is_smaller() -> None:
    elements = 1000
    tensors = [torch.randn(elements).abs() for _ in range(4)]
    space = Space(tensors)
    arguments = arguments_of(_ADAM, [tensor.clone() for tensor in tensors], _ADAM_FLAGS)
    options = torch_options_of(_ADAM, adam.adam, arguments)
    assert options is not None
    formats = dict.fromkeys(("parameter_format", "gradient_format", "state_format"))
    options = replace(options, step=7, **dict.fromkeys(formats, torch.float32))
    kernels = TorchKernels(space, space.geometry)  # type: ignore[arg-type]
    space.share = 3
    kernels.make(space.part(options, 0, elements), space.shadows, 14)
    assert space.most_chunks == 3
    adam.adam(**arguments)
    assert torch.equal(space.new()[1], arguments["params"][0])
    space.share = 0
    with pytest.raises(ResourceExhausted):
        kernels.make(space.part(options, 0, elements), space.shadows, 14)
