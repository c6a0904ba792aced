"""Tables of the summary and of `memtide status`."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from memtide._daemon import inspection
from memtide._telemetry.summary_tables import (
    _traffic_table,
    kinds_table,
    pools_table,
    protected_line,
    steps_line,
)
from rich.console import Console


def _columns(**mebibytes: int) -> dict[str, float]:
    """The table's MiB of a device pool of 16 MiB, by column."""
    pool = {"tier": "TIER_DEVICE", "capacity_bytes": 16 << 20}
    pool |= {f"{state}_bytes": value << 20 for state, value in mebibytes.items()}
    columns = pools_table(inspection.parse({"pools": [pool]})).columns[1:]
    return {str(each.header): float(str(next(each.cells)).split()[0]) for each in columns}


def test_what_is_shown_of_a_pool_sums_to_its_capacity() -> None:
    shown = _columns(used=4, reserved=2, quarantined=3, scrubbing=1, free=6)
    assert shown["quarantined"] == 3
    assert shown.pop("capacity") == sum(shown.values()) == 16


def test_states_that_are_rare_are_shown_where_they_are() -> None:
    assert {"quarantined", "ballooned"} & _columns(free=16).keys() == set()
    assert "ballooned" in _columns(ballooned=1, free=15)


def test_shadow_chunks_are_no_parameters_and_what_is_allocated_adds_up() -> None:
    kinds = [("PARAMETER", 20), ("OPTIMIZER_STATE", 40), ("GRADIENT", 10)]
    reply = [{"kind": f"CHUNK_KIND_{k}", "allocated_bytes": n << 20} for k, n in kinds]
    shadow_bytes = {"parameter": 10 << 20, "optimizer_state": 20 << 20}
    table = kinds_table(inspection.parse({"kinds": reply}), shadow_bytes)
    rows = dict(zip(*(map(str, column.cells) for column in table.columns[:2]), strict=True))
    mebibytes = {name: float(size.removesuffix(" MiB")) for name, size in rows.items()}
    expected = {"parameter": 10, "optimizer state": 20, "gradient": 10, "shadow copies": 30}
    assert mebibytes.pop("total") == sum(mebibytes.values()) == 70
    assert mebibytes == expected


def test_steps_say_whether_they_have_the_bits_of_torch() -> None:
    assert "torch's bits, whole" in steps_line(0, 5, "cpu")
    assert "torch's bits, 4 of 5 in parts" in steps_line(4, 5, "cpu")
    assert "4 of 5 in parts on the host, to 1e-6" in steps_line(4, 5, "cuda:0")


def test_each_device_has_a_row_and_all_have_one_column_of_copies() -> None:
    pools = [{"tier": "TIER_DEVICE", "device_number": number} for number in (0, 1)]
    node = inspection.parse({"pools": [*pools, {"tier": "TIER_HOST"}]})
    assert list(map(str, pools_table(node).columns[0].cells)) == ["device/0", "device/1", "host"]
    headers = [str(column.header) for column in kinds_table(node).columns]
    assert headers == ["states", "allocated", "on device", "on host"]


def test_a_run_that_moved_nothing_says_so_once() -> None:
    names = inspection.STALLS
    stalled: Any = SimpleNamespace(
        iterations=2, moved_bytes={}, stalled_s=dict.fromkeys(names, 0.5)
    )
    idle: Any = SimpleNamespace(iterations=0, moved_bytes={}, stalled_s={})
    shown = io.StringIO()
    console = Console(file=shown, width=100)
    console.print(_traffic_table(stalled))
    console.print(_traffic_table(idle))
    assert shown.getvalue().count("0.250 s") == len(names) > 1
    assert shown.getvalue().count("nothing") == 1 + 2


def test_protected_iterations_are_counted_where_there_are_any() -> None:
    def line(protected: int) -> str:
        summary: Any = SimpleNamespace(iterations=120, client={"protected_iterations": protected})
        return protected_line(summary)

    assert line(3).startswith("3 of 120 iterations protected: ")
    assert line(0) == "", "there are page faults in host memory"
