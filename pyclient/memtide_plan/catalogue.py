"""Machines and their parts that the planner knows: data/machines.json, where every value has its
source.

A machine of the catalogue has the rates of specification sheets, times the shares of them that
data/calibration.json says are reached. Names are compared without case, blanks and hyphens.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memtide._plan_file.machine import Device, Drive, Machine
from memtide.errors import InvalidArgument

from memtide_plan.calibration import constant

PATH = Path(__file__).with_name("data") / "machines.json"

# The machine around a GPU of which no more is known: a desktop's processor and memory for a
# GeForce, a server's for others.
_DESKTOP, _SERVER = "desktop-4090", "server-h100"
_UNKNOWN_OF_SHEETS = "uncertainty_of_sheets"


def machines() -> tuple[Machine, ...]:
    """The machines that people buy or rent, by name; not those of rows alone."""
    return tuple(
        machine(name)
        for name, document in sorted(_documents().items())
        if document["kind"] == "machine" and document["listed"]
    )


def machine(name: str, *, rates: str = "measured") -> Machine:
    """A machine by its name. `rates`: "measured" links where the file has them, or those of
    specification "sheets" alone.

    InvalidArgument: it is not known; the error names the nearest."""
    document = _document("machine", name)
    measured = document.get("rates", {}) if rates == "measured" else {}
    device_of = _document("gpu", document["device"])
    link = _document("link", document.get("link", device_of["link"]))
    host = _document("host", document["host"])
    devices = document["devices"]
    return Machine(
        name=document["name"],
        device=device(document["device"]),
        devices=devices,
        **_link_rates(measured, _value(link, "bytes_per_s")),
        between_devices_bytes_per_s=_between(device_of) if devices > 1 else None,
        host_memory_bytes=_value(document, "host_memory_bytes"),
        host_memory_bytes_per_s=_stepped(host, devices),
        drive=drives(**document["drives"]) if "drives" in document else None,
        price=_value(document, "price") if "price" in document else None,
        uncertainty=constant(_UNKNOWN_OF_SHEETS),
    )


def device(name: str) -> Device:
    """A GPU by its name. InvalidArgument: it is not known; the error names the nearest."""
    document = _document("gpu", name)
    return Device(
        name=document["name"],
        memory_bytes=_value(document, "memory_bytes"),
        flop_per_s={key: flop["value"] for key, flop in document["flop_per_s"].items()},
        memory_bytes_per_s=_value(document, "memory_bytes_per_s"),
        reached_flop=constant(f"reached_flop.{document['family']}"),
        reached_memory=constant("reached_memory"),
        multiprocessors=int(_value(document, "multiprocessors")),
        reached_by_older=(
            constant("attention.older_on_hopper") if document["family"] == "hopper" else 1.0
        ),
    )


def drives(name: str, count: int = 1) -> Drive:
    """`count` equal drives, as one. InvalidArgument: the name is not known."""
    document = _document("drive", name)
    return Drive(
        read_bytes_per_s=count * _reached(document, "read_bytes_per_s", "reached_drive"),
        write_bytes_per_s=count * _reached(document, "write_bytes_per_s", "reached_drive"),
        size_bytes=_value(document, "size_bytes") * count,
        endurance_bytes=_value(document, "endurance_bytes") * count,
    )


def drives_of(name: str, *, count: int) -> Drive:
    """As many of a machine's drives as one. InvalidArgument: it has no drives, or fewer."""
    document = _document("machine", name)
    most = document.get("drives", {}).get("count", 0)
    if not 1 <= count <= most:
        raise InvalidArgument(f"{name} has {most} drives, and {count} are asked for")
    return drives(document["drives"]["name"], count)


def around(gpu: str) -> Machine:
    """A machine with one GPU of that name and no drive, whose link is the GPU's, and whose host is
    a desktop's for a GeForce and a server's for others; it has no price.

    InvalidArgument: the GPU is not known; the error names the nearest."""
    found = device(gpu)
    document = _document("gpu", gpu)
    like = machine(_DESKTOP if document["family"] == "geforce" else _SERVER)
    link = _document("link", document["link"])
    rates = _link_rates({}, _value(link, "bytes_per_s"))
    return replace(
        like,
        name=found.name,
        device=found,
        to_device_bytes_per_s=rates["to_device_bytes_per_s"],
        from_device_bytes_per_s=rates["from_device_bytes_per_s"],
        both_ways_bytes_per_s=rates["both_ways_bytes_per_s"],
        drive=None,
        price=None,
    )


def named(kind: str) -> tuple[str, ...]:
    """The names of all parts of one kind: "gpu", "machine", "drive", "link" or "host"."""
    return tuple(sorted(d["name"] for d in _documents().values() if d["kind"] == kind))


def _link_rates(measured: Mapping[str, Any], bytes_per_s: float) -> dict[str, float]:
    """The fields of a machine's link: measured where it is, else a share of the specification."""
    one_way = bytes_per_s * constant("reached_link")
    to_device = measured["to_device"]["value"] if "to_device" in measured else one_way
    from_device = measured["from_device"]["value"] if "from_device" in measured else one_way
    both = constant("reached_both_ways") * (to_device + from_device)
    return {
        "to_device_bytes_per_s": to_device,
        "from_device_bytes_per_s": from_device,
        "both_ways_bytes_per_s": (
            measured["both_ways"]["value"] if "both_ways" in measured else both
        ),
    }


def _between(gpu: Mapping[str, Any]) -> float | None:
    if "between_devices_bytes_per_s" not in gpu:
        return None
    return _value(gpu, "between_devices_bytes_per_s") * constant("reached_link")


def _stepped(host: Mapping[str, Any], devices: int) -> float:
    """The rate of host memory in an optimizer's step. A process has its memory on one socket; with
    devices on several, what it reads and writes passes the link between sockets."""
    sockets = int(host.get("sockets", 1))
    rate = _value(host, "memory_bytes_per_s") / sockets * constant("reached_host_memory")
    return rate * constant("reached_across_sockets") if min(devices, sockets) > 1 else rate


def _reached(document: Mapping[str, Any], key: str, share: str) -> float:
    """A rate as it is reached: what was measured, or a share of the specification."""
    rate = _value(document, key)
    return rate if document[key]["basis"] == "measured" else rate * constant(share)


def _value(document: Mapping[str, Any], key: str) -> float:
    return float(document[key]["value"])


@functools.cache
def _documents() -> Mapping[str, Mapping[str, Any]]:
    """All machines and parts, by the plain form of their names."""
    documents = json.loads(PATH.read_text(encoding="utf-8"))
    return {_plain(document["name"]): document for document in documents}


@functools.cache
def _by_alias(kind: str) -> Mapping[str, Mapping[str, Any]]:
    found = {}
    for document in _documents().values():
        if document["kind"] == kind:
            for name in (document["name"], *document.get("aliases", ())):
                found[_plain(name)] = document
    return found


def _document(kind: str, name: str) -> Mapping[str, Any]:
    known = _by_alias(kind)
    if _plain(name) not in known:
        what = "GPU" if kind == "gpu" else kind
        raise InvalidArgument(f"there is no {what} '{name}' in the catalogue{_near(name, kind)}")
    return known[_plain(name)]


def _near(name: str, kind: str) -> str:
    aliases = _by_alias(kind)
    near = difflib.get_close_matches(_plain(name), aliases, 6, 0.5)
    names = list(dict.fromkeys(aliases[alias]["name"] for alias in near))[:3]
    if names:
        return f": is it {' or '.join(names)}?"
    return f": it has {_listed(named(kind))}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum()).removeprefix("nvidia")
