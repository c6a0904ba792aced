"""The options of a machine as a user writes them. Nothing of the catalogue is read here, so that
the command line begins at once."""

from __future__ import annotations

from dataclasses import dataclass

# The name of the machine that this is, as it was measured.
THIS = "this"


@dataclass(frozen=True, kw_only=True)
class MachineWords:
    """The options of a machine, as written. None: not set."""

    machine: str | None = None
    gpu: str | None = None
    devices: int | None = None
    device_memory: str | None = None
    host_memory: str | None = None
    link: str | None = None
    ssd: str | None = None
    ssd_size: str | None = None
    ssd_life: str | None = None
