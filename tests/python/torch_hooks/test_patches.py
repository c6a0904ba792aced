"""Patches of torch are in one table, are found, and are undone to the last attribute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide import errors
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.patching import patches
from memtide._torch_hooks.patching.attributes import Attributes
from memtide._torch_hooks.patching.later_patches import LaterPatches
from memtide._torch_hooks.patching.patch_row import OLDEST_TORCH
from memtide._torch_hooks.patching.patch_table import PATCHES


def own_attributes(owners: list[Any]) -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in owners]


def optimizer_classes(base: type = torch.optim.Optimizer) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from optimizer_classes(kind)


def assert_the_same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    for one, other in zip(before, after, strict=True):
        changed = {n for n in one.keys() | other.keys() if one.get(n) is not other.get(n)}
        assert not changed


def owners() -> list[Any]:
    assert not patches.missing()  # It imports all modules.
    found = {id(owner): owner for p in PATCHES if (owner := p.found()) is not None}
    return list(found.values())


def start(client: FakeClient) -> runtimes.Runtime:
    return runtimes.start(client, Observer(), adopt_everything=True)


def train_a_step(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


def test_every_row_is_found_in_this_torch() -> None:
    assert [str(patch) for patch in patches.missing()] == []
    expected = patches.expected(patches.version_of(torch.__version__))
    others = [p for p in PATCHES if p not in expected and p.found() is not None]
    assert {p.module.partition(".")[0] for p in others} <= {
        *("memtide", "threading", "faulthandler"),
        *("builtins", "io", "os", "shutil", "transformers"),
    }


def test_every_row_says_why_and_is_required_in_all_versions_or_says_what_is_off() -> None:
    assert len({(str(patch), patch.when) for patch in PATCHES}) == len(PATCHES)
    for patch in PATCHES:
        assert patch.why
        if not patch.absent:
            assert (patch.since, patch.until) == (OLDEST_TORCH, None)


def test_the_table_has_all_of_torchs_update_functions() -> None:
    listed = {(p.module, p.name) for p in PATCHES}
    found = {
        (name, function)
        for name, module in list(sys.modules.items())
        if name.startswith("torch.optim.") and module is not None
        for function, value in vars(module).items()
        if function.startswith(("_multi_tensor_", "_fused_"))
        and getattr(value, "__module__", None) == name
    }
    assert len(found) == 14
    assert found <= listed


@pytest.mark.parametrize(
    "client",
    [
        pytest.param({}, id="host"),
        pytest.param({"kernel_faults": False}, id="no kernel faults"),
        pytest.param({"handles_faults": False}, id="gpu"),
    ],
)
def test_all_of_it_is_undone(client: dict[str, bool]) -> None:
    train_a_step()  # Torch wraps its step, before there are hooks.
    everything = [*owners(), *optimizer_classes()]
    before = own_attributes(everything)
    finders = list(sys.meta_path)
    for _ in range(2):
        runtime = start(FakeClient(**client))
        replaced = 0
        for patch in PATCHES:
            owner = patch.found()
            if owner is not None and patch.when in runtime._runs() and not patch.of_subclasses:
                index = next(i for i, one in enumerate(everything) if one is owner)
                assert vars(owner)[patch.name] is not before[index].get(patch.name), patch
                replaced += 1
        assert replaced > 35
        assert vars(torch.optim.SGD)["step"]._memtide is vars(torch.optim.SGD)["step"]
        runtimes.stop()
        assert_the_same(before, own_attributes(everything))
        assert sys.meta_path == finders
    assert "mul_" not in vars(torch.Tensor)
    assert threading.Thread.start.__module__ == "threading"


def test_a_class_that_first_steps_under_memtide_has_torchs_step_afterwards() -> None:
    class Late(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            steps.append(runtimes.current())

    steps: list[runtimes.Runtime | None] = []
    runtime = start(FakeClient())
    train_a_step(Late)
    runtimes.stop()
    assert steps == [runtime]
    step = vars(Late)["step"]
    assert not hasattr(step, "_memtide")
    train_a_step(Late)
    assert vars(Late)["step"] is step  # Torch knows that it is wrapped.
    assert steps == [runtime, None]


def test_the_own_step_of_an_optimizer_is_put_back() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    own = vars(optimizer)["step"]
    runtime = runtimes.start(FakeClient(), Observer(), adopt_everything=False)
    runtime.wrap_own_step(optimizer)
    assert vars(optimizer)["step"] is not own
    assert optimizer.step.__func__._memtide is optimizer.step.__func__
    runtimes.stop()
    assert vars(optimizer)["step"] is own


def test_what_a_feature_replaces_has_a_row_and_is_undone_with_the_whole() -> None:
    class Block(torch.nn.Linear):
        pass

    def around(original: Any) -> Any:
        return lambda *args: original(*args)

    before = own_attributes([Block, torch.nn.Module])
    whole = Attributes()
    later = LaterPatches(whole)
    later.replace(Block, "_call_impl", around)
    later.replace(torch.nn.Module, "register_parameter", around)
    for owner, name in ((torch.nn.Module, "zero_grad"), (Block, "register_parameter")):
        with pytest.raises(AssertionError, match="has no row"):
            later.replace(owner, name, around)
    assert vars(Block)["_call_impl"] is not torch.nn.Linear._call_impl
    whole.undo()
    assert_the_same(before, own_attributes([Block, torch.nn.Module]))


LATE_IMPORT = """
import importlib, sys
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.patching.later_patches import LATER
from memtide._torch_hooks.patching.patch_table import PATCHES

late = [p for p in PATCHES if ".fsdp." in p.module and p not in LATER]
def replaced():
    for module in {p.module for p in late}:
        importlib.import_module(module)
    return ["_torch_hooks" in vars(p.found())[p.name].__code__.co_filename for p in late]

finders = list(sys.meta_path)
runtimes.start(FakeClient(), Observer(), adopt_everything=True)
assert not any(p.module in sys.modules for p in late)
assert sys.meta_path != finders
if sys.argv[1] == "import while it runs":
    assert all(replaced())
runtimes.stop()
assert sys.meta_path == finders
assert not any(replaced())
"""


@pytest.mark.parametrize("when", ["import while it runs", "import after stop"])
def test_what_is_imported_late_is_patched_for_a_running_runtime_only(when: str) -> None:
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", LATE_IMPORT, when],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )


def test_without_an_optional_symbol_its_feature_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp.GradScaler, "_unscale_grads_")
    (missing,) = patches.missing()
    assert missing.absent == "steps under a GradScaler are not speculative"
    start(FakeClient())
    try:
        assert not hasattr(torch.amp.GradScaler, "_unscale_grads_")
        train_a_step()
    finally:
        runtimes.stop()
    assert not hasattr(torch.amp.GradScaler, "_unscale_grads_")


def test_a_torch_that_keeps_parts_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    owners()
    kind: Any = next(p.found() for p in PATCHES if p.owner.endswith(":FSDPParam"))
    monkeypatch.delitem(kind.__annotations__, "_sharded_param_data")
    before = own_attributes([kind])
    start(FakeClient())
    try:
        assert_the_same(before, own_attributes([kind]))
    finally:
        runtimes.stop()
    assert {patch.name for patch in patches.missing()} == {
        "_init_sharded_param",
        "reset_sharded_param",
    }


def test_without_a_required_symbol_memtide_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = owners()
    monkeypatch.delattr(torch.optim.Optimizer, "_optimizer_step_code")
    before = own_attributes(everything)
    with pytest.raises(errors.FailedPrecondition, match="Optimizer._optimizer_step_code"):
        start(FakeClient())
    assert runtimes.current() is None
    assert_the_same(before, own_attributes(everything))
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks


def test_versions_are_compared_by_their_numbers() -> None:
    assert patches.version_of("2.12.1+cu130") == (2, 12)
    assert patches.version_of("2.7.0a0+git1") == (2, 7)
    names = {version: {p.name for p in patches.expected(version)} for version in ((2, 6), (2, 7))}
    assert names[2, 6] - names[2, 7] == {"_multi_tensor_adamw", "_fused_adamw"}
