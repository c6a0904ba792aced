"""The machine that a user names: one of the catalogue, this one, a file, or a GPU with what is
beside it.

UsageError, InvalidArgument: it is not known, or a part of it is missing. The error says what to
write.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from memtide._plan_file import machine_file
from memtide._plan_file.machine import Drive, Machine
from memtide._util.sizes import format_size
from memtide.errors import UsageError

from memtide_plan import catalogue
from memtide_plan.ask import units
from memtide_plan.ask.words import THIS, MachineWords

# A rate without "/s", or a rate without any unit: no drive has such a name.
_AMOUNT = re.compile(r"[\d.]+\s*([kKmMgGtT]i?[bB]?)?")
_NONE = "none"
# A drive of which only the speed is known.
_USUAL_DRIVE_BYTES = 2e12


def machine_of(words: MachineWords) -> Machine:
    """The machine that the options describe."""
    machine = _named(words)
    if words.devices is not None:
        machine = _with_devices(machine, words.devices)
    if words.device_memory is not None:
        machine = _with_device_memory(machine, units.size("--device-memory", words.device_memory))
    if words.host_memory is not None:
        size = _positive("--host-memory", words.host_memory)
        machine = replace(machine, host_memory_bytes=size)
    if words.link is not None:
        rate = units.rate("--link", words.link)
        machine = replace(
            machine,
            to_device_bytes_per_s=rate,
            from_device_bytes_per_s=rate,
            both_ways_bytes_per_s=None,
        )
    return replace(machine, drive=_drive_of(words, machine.drive))


def _named(words: MachineWords) -> Machine:
    if words.gpu is not None and words.machine is not None:
        raise UsageError("--gpu and --machine both name a device: leave one of them out")
    if words.gpu is not None:
        return _around_gpu(words.gpu, words)
    if words.machine is None:
        raise UsageError(
            "on which machine? --gpu rtx4090 --host-memory 64GiB, or --machine with a name of the "
            "catalogue, a file, or `this`"
        )
    if words.machine == THIS:
        return machine_file.load_this()
    if words.machine.endswith(".json"):
        return machine_file.load(Path(words.machine))
    return catalogue.machine(words.machine)


def _around_gpu(gpu: str, words: MachineWords) -> Machine:
    """A machine with that GPU and the host of its kind. The options say what memory and drive it
    has."""
    machine = catalogue.around(gpu)
    if words.host_memory is None:
        raise UsageError(f"--gpu {gpu} needs its host's memory, too: --host-memory 64GiB")
    return machine


def _with_devices(machine: Machine, count: int) -> Machine:
    if count < 1:
        raise UsageError(f"--devices {count}: a machine has at least one")
    between = machine.between_devices_bytes_per_s
    if between is None:  # As where the catalogue has several of them.
        alike = (m for m in catalogue.machines() if m.device.name == machine.device.name)
        between = next((m.between_devices_bytes_per_s for m in alike if m.devices > 1), None)
    return replace(machine, devices=count, between_devices_bytes_per_s=between, price=None)


def _with_device_memory(machine: Machine, size_bytes: int) -> Machine:
    most = machine.device.memory_bytes
    if not 0 < size_bytes <= most:
        raise UsageError(
            f"--device-memory is {format_size(size_bytes)}, and {machine.device.name} has "
            f"{format_size(most)}"
        )
    device = machine.device
    if device.pool_bytes is not None:
        device = replace(device, pool_bytes=min(device.pool_bytes, size_bytes))
    return replace(machine, device=replace(device, memory_bytes=size_bytes))


def _drive_of(words: MachineWords, drive: Drive | None) -> Drive | None:
    if words.ssd is not None:
        drive = None if words.ssd == _NONE else _drive_named(words.ssd, drive)
    for option, text in (("--ssd-size", words.ssd_size), ("--ssd-life", words.ssd_life)):
        if text is not None and drive is None:
            raise UsageError(f"{option} needs a drive: --ssd 3.5GB/s")
    if drive is not None and words.ssd_size is not None:
        drive = replace(drive, size_bytes=_positive("--ssd-size", words.ssd_size))
    if drive is not None and words.ssd_life is not None:
        drive = replace(drive, endurance_bytes=_positive("--ssd-life", words.ssd_life))
    return drive


def _drive_named(text: str, drive: Drive | None) -> Drive:
    """A drive of the catalogue, or one of "7GB/s", or of "7GB/s,5GB/s": reads and writes."""
    if "/" not in text and not _AMOUNT.fullmatch(text):
        return catalogue.drives(text)
    read_text, comma, write_text = text.partition(",")
    read = units.rate("--ssd", read_text)
    write = units.rate("--ssd", write_text) if comma else read
    if drive is None:
        drive = Drive(read_bytes_per_s=read, write_bytes_per_s=write, size_bytes=_USUAL_DRIVE_BYTES)
    return replace(drive, read_bytes_per_s=read, write_bytes_per_s=write)


def _positive(option: str, text: str) -> int:
    size_bytes = units.size(option, text)
    if not size_bytes:
        raise UsageError(f"{option} {text} is no memory at all: write for example 64GiB")
    return size_bytes
