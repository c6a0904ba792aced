"""The counters of a client: how often chunks were mapped, and what leases have waited for."""

from __future__ import annotations

import ctypes
from pathlib import Path

from memtide._capi.client import Access, Client, Kind, Places
from memtide._capi.library import Options
from stepping_script import node_daemon


def test_the_parts_of_a_wait_are_no_more_than_it(tmp_path: Path) -> None:
    """24 chunks take turns in 16 slots, by acquires and by page faults."""
    with node_daemon(tmp_path, host_pool="32MiB") as socket_dir:
        client = Client(Options(str(socket_dir), chunk_bytes=2 << 20))
        place = client.allocate(Kind.GRADIENT, 24)
        for number in range(place, place + 24):
            places = Places([number])
            client.acquire(places, Access.WRITE)
            client.release(places)
        acquired = client.stats()
        assert acquired.maps == 24
        ctypes.memset(client.properties.base + place * client.properties.chunk_bytes, 1, 1)
        after = client.stats()
        client.close()
    assert after.maps == 25
    parts = (after.call_nanoseconds, after.map_nanoseconds, after.unmap_nanoseconds)
    assert min(parts) > 0
    assert sum(parts) <= after.wait_nanoseconds
