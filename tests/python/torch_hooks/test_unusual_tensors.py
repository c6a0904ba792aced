"""Scripts and libraries that treat tensors in unusual ways train to plain torch's bits, and all
that a model holds is in chunks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide._util.model_bytes import ModelBytes
from memtide.errors import FailedPrecondition
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

WIDTH = 64
Results = list[torch.Tensor]


class Counts(Observer):
    """Keeps what the model was counted to have."""

    def __init__(self) -> None:
        self.model = ModelBytes()

    def count_model(self, count: ModelBytes) -> None:
        self.model = count


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def runtime(counts: Counts) -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(lease_budget=8), counts, adopt_everything=True)
    runtimes.stop()


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def _train(model: nn.Module, steps: int = 3, dtype: torch.dtype = torch.float32) -> Results:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, WIDTH, dtype=dtype)) - 0.1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*losses, *(t.detach().clone() for t in (*model.parameters(), *states))]


def _parked() -> Results:
    """The memory of weights is given back by hand, and got again."""
    model = _network()
    results = _train(model)
    parked = [p.detach().clone() for p in model.parameters()]
    held = [p.untyped_storage() for p in model.parameters()]
    for storage in held:
        storage.resize_(0)
    assert not any(p.untyped_storage().nbytes() for p in model.parameters())
    for parameter, storage, content in zip(model.parameters(), held, parked, strict=True):
        storage.resize_(content.nbytes)
        parameter.data.copy_(content)
    return results + _train(model)


def _halved() -> Results:
    """A storage is cut, and grows again: what was in its first half stays."""
    model = _network()
    weight = model[0].weight
    size_bytes = weight.nbytes
    weight.untyped_storage().resize_(size_bytes // 2)
    weight.untyped_storage().resize_(size_bytes)
    weight.data[WIDTH // 2 :] = 1.0
    return _train(model)


def _resized_gradients() -> Results:
    model = _network()
    results = []
    for _ in range(2):
        model(torch.ones(2, WIDTH)).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            results.append(parameter.grad.clone())
            parameter.grad.resize_(2 * parameter.numel()).fill_(0.5)
            results.append(parameter.grad.clone())
            parameter.grad = None
    return results


def _swapped() -> Results:
    """Conversions swap tensors, which forbids weak references."""
    model = _network()
    saved = {name: t.clone() * 0.9 for name, t in model.state_dict().items()}
    results = _train(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.bfloat16)
        results += _train(model, dtype=torch.bfloat16)
        model.to(torch.float32)
        model.load_state_dict(saved)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return results + _train(model)


def _traced() -> Results:
    """torch.jit.trace traces twice, and compares the graphs."""
    model = torch.jit.trace(_network(), torch.ones(2, WIDTH))
    file = io.BytesIO()
    results = _train(model)
    torch.jit.save(model, file)
    file.seek(0)
    return results + _train(torch.jit.load(file))


def _captured() -> Results:
    """torch.export and torch.fx record the model between steps; what they make trains, too."""
    model = _network()
    x = torch.randn(8, WIDTH)
    results = _train(model)
    file = io.BytesIO()
    exported = torch.export.export(model, (x,))
    torch.export.save(exported, file)
    file.seek(0)
    results.append(torch.export.load(file).module()(x).detach())
    results += _train(exported.module())
    results += _train(torch.fx.symbolic_trace(model))
    return results + _train(model)


class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        rows = [torch.randn(n, WIDTH) for n in (30, 70, 50)]
        self.tables = nn.Parameter(torch.nested.nested_tensor(rows))
        self.body = _network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x + sum(table.mean(0) for table in self.tables.unbind()))


def _nested() -> Results:
    model = _Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(t.detach().clone() for t in model.tables.unbind())]


class _Own(nn.Parameter):
    """A library's class of parameters, with memory of its own."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> _Own:
        made: _Own = torch.Tensor._make_subclass(cls, data, requires_grad)
        return made


class _Answering(_Own):
    """As _Own; it answers for torch's functions itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.Tensor.mul_:  # A step in parts would not call it.
            func = torch.Tensor.div_
        return super(_Own, cls).__torch_function__(func, types, args, kwargs or {})


def _own_classes() -> Results:
    model = _network()
    model[0].weight = _Own(model[0].weight.detach().clone())
    model[2].weight = _Answering(model[2].weight.detach().clone())
    return [t.as_subclass(torch.Tensor) for t in _train(model)]


class _Parts(torch.Tensor):
    """A matrix whose rows are in two tensors."""

    @staticmethod
    def __new__(cls, first: torch.Tensor, rest: torch.Tensor) -> _Parts:
        size = (len(first) + len(rest), *first.shape[1:])
        made: _Parts = torch.Tensor._make_wrapper_subclass(cls, size, dtype=first.dtype)
        return made

    def __init__(self, first: torch.Tensor, rest: torch.Tensor) -> None:
        self.first, self.rest = first, rest

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "rest"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> _Parts:
        return _Parts(inner["first"], inner["rest"])

    def whole(self) -> torch.Tensor:
        return torch.cat([self.first, self.rest])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func is torch.ops.aten.detach.default, func
        return _Parts(args[0].first.detach(), args[0].rest.detach())


class _Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = _Parts(torch.rand(WIDTH // 2, WIDTH), torch.rand(WIDTH // 2, WIDTH))
        self.rows = nn.Parameter(parts, requires_grad=False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adapter(x) + x @ self.rows.whole() / WIDTH


def _changing_wrappers(steps: int = 6) -> Results:
    """The tensors in a wrapper are replaced at each step, by others of other sizes."""
    model = nn.Sequential(_Rows(), nn.Tanh(), _Rows())
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    results = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(8, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
        for layer in (model[0], model[2]):
            whole, cut = layer.rows.whole(), 8 * (step % 4 + 1)
            layer.rows.first, layer.rows.rest = whole[:cut] * 0.9, whole[cut:] * 1.1
    return [*results, *(layer.rows.whole() for layer in (model[0], model[2]))]


class _State:
    """As the state of a quantized parameter."""

    def __init__(self) -> None:
        self.scales = torch.rand(WIDTH, WIDTH)
        self.nested = {"second": [torch.rand(WIDTH, WIDTH)]}


class _Held(nn.Module):
    """A layer that holds its bytes in all the ways of libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(0, 16, (WIDTH, WIDTH), dtype=torch.int32))
        self.register_buffer("seen", torch.zeros(WIDTH, WIDTH))
        self.register_buffer("replaced", torch.zeros(WIDTH, WIDTH))
        self.frozen = _Own(torch.rand(WIDTH, WIDTH), requires_grad=False)
        self.frozen.state = _State()
        self.two = nn.Parameter(
            TwoTensor(torch.rand(WIDTH, WIDTH), torch.rand(WIDTH, WIDTH)), requires_grad=False
        )
        self.table = torch.rand(WIDTH, WIDTH)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.frozen.state
        weight = self.codes * state.scales + state.nested["second"][0] + self.table
        weight = weight + self.frozen.as_subclass(torch.Tensor) + self.two.a
        self.seen += weight.detach()
        self.replaced = self.replaced * 0.5 + 1
        return self.adapter(x + x @ (weight + self.seen + self.replaced) / WIDTH)


def _held() -> Results:
    torch.manual_seed(0)
    model = nn.Sequential(_Held(), nn.Tanh(), _Held())
    results = _train(model)
    plain = [t.a if isinstance(t, TwoTensor) else t for t in results]
    return [*(t.as_subclass(torch.Tensor) for t in plain), *(b.clone() for b in model.buffers())]


def _functional() -> Results:
    """A function of torch.func wraps parameters and buffers, before and after a first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(8, WIDTH)

    def loss(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, (parameters, buffers), (x,)).square().mean()

    def gradients() -> Results:
        named, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        return [gradient.clone() for gradient in torch.func.grad(loss)(named, buffers).values()]

    return [*gradients(), *_train(model), *gradients()]


SCRIPTS = [
    *(_parked, _halved, _resized_gradients, _swapped, _traced, _nested),
    *(_own_classes, _held, _functional, _captured, _changing_wrappers),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_gives_plain_torchs_bits(
    script: Callable[[], Results], request: pytest.FixtureRequest
) -> None:
    plain = script()
    request.getfixturevalue("runtime")
    ours = script()
    assert len(ours) == len(plain)
    assert all(map(torch.equal, ours, plain))


def test_whatever_a_module_holds_is_in_chunks(runtime: Runtime, counts: Counts) -> None:
    model = nn.Sequential(_Held())
    _train(model)
    layer = model[0]
    manages = runtime.memory.addresses.manages
    state = layer.frozen.state
    assert all(map(manages, (layer.codes, layer.seen, layer.frozen, layer.table)))
    assert all(map(manages, (state.scales, state.nested["second"][0], layer.two.a, layer.two.b)))
    # A buffer that is replaced in each step is not copied each time.
    assert set(counts.model.outside) == {"in tensors of less than 1 KiB", _REPLACED}
    assert counts.model.outside[_REPLACED] == layer.replaced.nbytes
    assert counts.model.total > 8 * layer.codes.nbytes


def test_tensors_that_come_and_go_in_a_wrapper_leave_no_chunks_behind(runtime: Runtime) -> None:
    _changing_wrappers(4)
    before = runtime.client.stats().chunks
    _changing_wrappers(40)
    assert runtime.client.stats().chunks <= before + 1


_REPLACED = "not used in a forward pass yet, or replaced since"


def test_objects_and_data_that_a_module_refers_to_stay(runtime: Runtime) -> None:
    model = _network()
    model.trainer = _State()
    model.samples = [torch.rand(WIDTH, WIDTH) for _ in range(2000)]
    model.few = [torch.rand(WIDTH, WIDTH)]
    _train(model)
    manages = runtime.memory.addresses.manages
    assert not any(map(manages, (model.trainer.scales, *model.samples)))


def test_the_reasons_why_bytes_are_outside_are_counted(runtime: Runtime, counts: Counts) -> None:
    model = _network()
    whole = torch.rand(2, WIDTH, WIDTH)
    model[0].register_buffer("part", whole[0])
    model[0].register_buffer("foreign", torch.frombuffer(bytearray(4096), dtype=torch.float32))
    model[0].register_buffer("sparse", torch.eye(WIDTH).to_sparse())
    _train(model)
    outside = counts.model.outside
    assert outside["over memory that several tensors share"] == whole[0].nbytes
    assert outside["over memory that is not torch's"] == 4096
    assert outside["in layouts that memtide leaves alone"]
    assert runtime.memory.addresses.manages(model[0].weight)


def test_buffers_of_no_model_stay_as_forked_workers_may_use_them(runtime: Runtime) -> None:
    transform = nn.Module()
    transform.register_buffer("window", torch.rand(WIDTH, WIDTH))
    transform.forward = lambda x: x * transform.window  # type: ignore[method-assign]
    transform(torch.ones(WIDTH, WIDTH))
    assert not runtime.memory.addresses.manages(transform.window)


def test_a_storage_with_views_is_not_resized_and_says_what_to_do(runtime: Runtime) -> None:
    weight = _network()[0].weight
    view = weight.detach()[1:]
    with pytest.raises(FailedPrecondition, match="Drop them before"):
        weight.untyped_storage().resize_(0)
    del view
    weight.untyped_storage().resize_(0)
    assert weight.untyped_storage().nbytes() == 0
    assert runtime.memory.addresses.here


def test_a_swapped_parameter_is_trained_in_chunks_again(runtime: Runtime) -> None:
    model = _network()
    one, other = model[0].weight, nn.Parameter(torch.rand(WIDTH, WIDTH))
    torch.utils.swap_tensors(one, other)
    _train(model, steps=1)
    model(torch.ones(2, WIDTH)).sum().backward()
    assert runtime.memory.addresses.manages(one)
    assert one.grad is not None and runtime.memory.addresses.manages(one.grad)


def test_a_parameter_that_replaces_another_in_its_group_is_adopted(runtime: Runtime) -> None:
    weight = nn.Parameter(torch.rand(WIDTH, WIDTH))
    optimizer = torch.optim.SGD([weight])
    for _ in range(2):
        weight = nn.Parameter(weight.detach()[::2].repeat(2, 1))
        optimizer.param_groups[0]["params"][0] = weight
        weight.square().sum().backward()
        optimizer.step()
        assert runtime.memory.addresses.manages(weight)


def test_a_step_that_raises_is_undone_and_says_so_once(
    runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = _network(), _network()
    optimizer = torch.optim.AdamW([{"params": one.parameters()}, {"params": two.parameters()}])
    before = [p.detach().clone() for p in one.parameters()]
    for _ in range(2):
        two(one(torch.ones(4, WIDTH))).sum().backward()
        optimizer.param_groups[1]["lr"] = "0.001"
        with pytest.raises(TypeError):
            optimizer.step()
    assert all(map(torch.equal, one.parameters(), before))
    assert capsys.readouterr().err.count("raised an error, and is undone") == 1
