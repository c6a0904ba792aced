"""Advice that a run gives for the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from memtide._daemon import inspection
from memtide._launch.pool_advice import states_moved_line


def test_what_steps_on_the_host_would_gain_is_said_where_states_cross_the_link() -> None:
    def line(on_device_mib: int = 20, sessions: int = 1, waited_s: float = 0.7) -> str:
        states = {"kind": "CHUNK_KIND_OPTIMIZER_STATE", "allocated_bytes": 40 << 20}
        states |= {"device_bytes": on_device_mib << 20}
        summary: Any = SimpleNamespace(
            iterations=10,
            iterating_s=2.0,
            moved_bytes={"host_to_device_bytes": 500 << 20, "device_to_host_bytes": 300 << 20},
            stalled_s={"stalled_on_copy": waited_s, "stalled_on_room": 0.1},
            node=inspection.parse({"kinds": [states], "sessions": [{}] * sessions}),
        )
        return states_moved_line(summary)

    assert "up to 40.0 MiB of the 80.0 MiB" in line()
    assert "up to 20% of the time" in line()
    assert "up to 80.0 MiB of the 80.0 MiB" in line(on_device_mib=0)
    assert "up to 100% of the time" in line(waited_s=7)
    assert not line(on_device_mib=40)
    assert not line(sessions=2), "the counters are of both"
