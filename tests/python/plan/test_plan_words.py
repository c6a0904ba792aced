"""Words of users for `memtide plan`: sizes, rates, optimizers, machines; and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import plans
import pytest
from memtide._plan_file import machine_file
from memtide._plan_file.training import States
from memtide.errors import InvalidArgument, MemtideError, UsageError
from memtide_plan import catalogue
from memtide_plan.ask import units
from memtide_plan.ask.machine import machine_of
from memtide_plan.ask.states import states_of
from memtide_plan.ask.words import MachineWords

# Words that users write.


@pytest.mark.parametrize(
    ("text", "size"), [("64GiB", 64 << 30), ("1.5GB", 1_500_000_000), ("16 MiB", 16 << 20)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert units.size("--host-memory", text) == size


@pytest.mark.parametrize("text", ["64", "64 GiBs", "GiB", "", "3.5GB/s", "-1GiB"])
def test_a_size_without_a_unit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write for example 64GiB"):
        units.size("--host-memory", text)


def test_rates_are_bytes_a_second() -> None:
    assert units.rate("--ssd", "3.5GB/s") == 3_500_000_000
    assert units.rate("--ssd", "2GiB/s") == 2 << 30


@pytest.mark.parametrize("text", ["3.5", "3.5GB", "3.5GB/min", "fast/s", "0GB/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--ssd"):
        units.rate("--ssd", text)


def test_targets_are_tokens_a_second() -> None:
    assert units.tokens_per_s("--buy", "2000tokens/s") == 2000
    assert units.tokens_per_s("--buy", "1.5k tokens/s") == 1500
    for text in ("2000", "2000 samples/s", "0tokens/s"):
        with pytest.raises(UsageError, match="2000tokens/s|any machine"):
            units.tokens_per_s("--buy", text)


@pytest.mark.parametrize("size", [3 << 30, 5 << 20, 24_576 << 20])
def test_a_budget_is_printed_as_it_may_be_written(size: int) -> None:
    assert units.size("--host-memory", units.format_budget(size)) == size


def test_optimizers_have_names_or_bytes() -> None:
    assert states_of("adamw") == states_of("2+2+12") == States()
    assert states_of("4+4+8") == states_of("AdamW-fp32")
    for text in ("adamm", "2+2", "0+2+12"):
        with pytest.raises(UsageError, match="--optimizer"):
            states_of(text)


# Machines.


def test_a_gpu_gets_the_memory_and_the_drive_that_are_named() -> None:
    machine = machine_of(
        MachineWords(
            gpu="rtx-4090",
            host_memory="64GiB",
            device_memory="20GiB",
            devices=2,
            ssd="7GB/s,5GB/s",
            ssd_life="600TB",
        )
    )
    assert machine.device.name == catalogue.device("rtx4090").name
    assert machine.device.memory_bytes == 20 << 30
    assert (machine.devices, machine.host_memory_bytes) == (2, 64 << 30)
    assert machine.drive is not None
    assert (machine.drive.read_bytes_per_s, machine.drive.write_bytes_per_s) == (7e9, 5e9)
    assert machine.drive.endurance_bytes == 600e12
    assert machine.price is None


def test_a_machine_of_the_catalogue_may_lose_its_drive() -> None:
    name = "desktop-4090"
    assert machine_of(MachineWords(machine=name)).drive is not None
    assert machine_of(MachineWords(machine=name, ssd="none")).drive is None


def test_a_drive_of_the_catalogue_has_its_life() -> None:
    words = MachineWords(gpu="rtx4090", host_memory="64GiB", ssd="990-pro")
    assert machine_of(words).drive == catalogue.drives("990-pro")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MachineWords(), "on which machine"),
        (MachineWords(gpu="rtx4091", host_memory="64GiB"), "rtx4090"),
        (MachineWords(gpu="rtx4090"), "--host-memory 64GiB"),
        (MachineWords(gpu="rtx4090", machine="this"), "leave one of them out"),
        (MachineWords(machine="desktop-4091"), "desktop-4090"),
        (MachineWords(gpu="rtx4090", host_memory="64"), "has no unit"),
        (MachineWords(gpu="rtx4090", host_memory="0GiB"), "no memory at all"),
        (MachineWords(machine="desktop-4090", device_memory="99GiB"), "has 2"),
        (MachineWords(gpu="rtx4090", host_memory="64GiB", ssd_life="1TB"), "needs a drive"),
        (MachineWords(gpu="rtx4090", host_memory="64GiB", ssd="3.5"), "has no unit"),
        (MachineWords(gpu="rtx4090", host_memory="64GiB", ssd="3.5GB"), "not a rate"),
        (MachineWords(gpu="rtx4090", host_memory="64GiB", ssd="991-pro"), "990-pro"),
        (MachineWords(gpu="rtx4090", host_memory="64GiB", devices=0), "at least one"),
    ],
)
def test_what_names_no_machine_is_refused(words: MachineWords, message: str) -> None:
    with pytest.raises(MemtideError, match=message):
        machine_of(words)


def test_a_machine_in_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "machine.json"
    machine_file.save(plans.machine(), path, {"source": "a test", "measured": {}})
    assert machine_file.load(path) == plans.machine()
    assert machine_of(MachineWords(machine=str(path))) == plans.machine()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": "two"}, "'devices' is 'two'"),
        ({"host_memory_bytes": 0}, "'host_memory_bytes' is 0"),
        ({"colour": "red"}, "has no 'colour'"),
        ({"device": {}}, "'name' is missing"),
        ({"drive": 3}, "'drive' is 3"),
    ],
)
def test_a_file_of_no_machine_names_the_field(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    document = {**asdict(plans.machine()), **change}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidArgument, match=message):
        machine_file.load(path)


def test_this_machine_has_to_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match="memtide doctor --measure"):
        machine_of(MachineWords(machine="this"))
    machine_file.save(plans.machine(), machine_file.default_path(), {})
    assert machine_of(MachineWords(machine="this")) == plans.machine()
