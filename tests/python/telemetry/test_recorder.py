"""Records of a run's iterations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from memtide._daemon import inspection
from memtide._telemetry.recorder import Recorder
from memtide._util.hook_costs import HookCosts


class Daemon:
    """A daemon whose answers take time, beside a script whose iterations take 1/16 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer_s: float) -> None:
        self._now_s, self._answer_s, self.asked_s = 0.0, answer_s, 0.0
        self.counters: dict[str, str] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self._now_s)
        monkeypatch.setattr(inspection, "inspect", self._inspect)
        self.recorder = Recorder(FakeClient(), Path("/nowhere"))  # type: ignore[arg-type]

    def iterate(self, iterations: int) -> None:
        for _ in range(iterations):
            self.recorder.moment("forward", "")
            self._now_s += 1 / 16
            self.recorder.end_iteration()

    def _inspect(self, *_where: Any, **_what: Any) -> inspection.Node:
        self._now_s += self._answer_s
        self.asked_s += self._answer_s
        return inspection.parse({"counters": self.counters})


def test_to_ask_a_slow_daemon_takes_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(monkeypatch, 0.01)
    daemon.iterate(1000)
    assert daemon.asked_s < 0.006 * 1000 / 16
    summary = daemon.recorder.finish()
    assert sum(record.iterations for record in summary.records) == 1000


def test_where_the_daemon_answers_at_once_a_record_lasts_a_tenth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(monkeypatch, 0.0)
    daemon.iterate(100)
    assert [record.iterations for record in daemon.recorder.finish().records] == [2] * 50


def test_what_was_reclaimed_is_counted_by_tier_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(monkeypatch, 0.0)
    daemon.counters = {"device_reclaimed_bytes": "5"}
    assert daemon.recorder.finish().reclaimed_bytes == {"device": 5, "host": 0, "ssd": 0}


def test_what_hooks_cost_is_recorded_from_when_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(monkeypatch, 0.0)
    costs = HookCosts(gradients=7)
    daemon.recorder.count_hooks(costs)
    daemon.iterate(2)
    for _ in range(2):
        costs.gradients += 3
        costs.dispatch_ns += 500
        daemon.iterate(2)
    summary = daemon.recorder.finish()
    assert [record.hooks["gradients"] for record in summary.records] == [0, 3, 3]
    assert summary.as_json()["hooks"] == {
        "gradients": 6,
        "gradient_ns": 0,
        "operations": 0,
        "dispatch_ns": 1000,
    }
