"""The load test: tools/load --minutes N [--seed S]. Needs root, as its sessions have eight users.

Phase by phase, 50 sessions use a daemon with small pools while something is short or fails. Each
session that behaves well verifies every byte that it reads; whatever else happens to it must be
something that the test did. At the end of each round no session is left, and the daemon must use
what it used before. Exit status 1: something broke; 3: only the latency did."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import faults
from faults import Phase
from latency import Buckets, quantile, since
from node import Baseline, Node, Usage, running_node, settled_usage
from sessions import LEASE_S, Circumstances, Sessions, Slot, Tally

FIRST_UID, GROUP_ID = 61001, 61000
USERS, HOSTILE_USERS = 6, 2
_OF_A_USER = ("steps", "steps", "fixed", "fixed", "fixed", "fixed")
# Few, as each is guaranteed a quarter of the memory that is free when it opens.
_SEVENTH = ("elastic", "elastic", "fixed", "fixed", "fixed", "fixed")
_HOSTILE = ("renewals", "fetches", "unread", "connections", "traces", "malformed", "hog", "keeper")
# A resident fetch in the daemon, under load against alone: decision 49 has what was measured.
WORST_RATIO = 5.0
_BROKE, _ONLY_SLOW = 1, 3
_PHASES_IN_A_ROUND = len(faults.PHASES) + 1
_LEAST_PHASE_S, _MOST_PHASE_S = 3.0, 60.0
# In which all sessions start.
_BEGIN_S = 3.0
# Named jobs live on for their time to live, and the shares of all jobs are taken back.
_SETTLE_S = 20.0
_ENDS_OF_A_ROUND, _END_S = 2, 15.0
_SHOWN = 12  # How many errors of a phase are shown at once.


def all_slots() -> list[Slot]:
    """50 sessions of eight users."""
    slots = [
        Slot(0, FIRST_UID + user, kind)
        for user in range(USERS)
        for kind in (*_OF_A_USER, _SEVENTH[user])
    ]
    per_user = len(_HOSTILE) // HOSTILE_USERS
    slots += [
        Slot(0, FIRST_UID + USERS + i // per_user, kind, hostile=True)
        for i, kind in enumerate(_HOSTILE)
    ]
    for number, slot in enumerate(slots, start=1):
        slot.number = number
    return slots


@dataclass
class Row:
    """One phase, all rounds together."""

    name: str
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    buckets: Counter[float] = field(default_factory=Counter)

    def add(self, seconds: float, tally: Tally, buckets: Buckets) -> None:
        self.seconds += seconds
        self.tally.calls += tally.calls
        if tally.slowest_ms > self.tally.slowest_ms:
            self.tally.slowest_ms = tally.slowest_ms
            self.tally.slowest_call = tally.slowest_call
        self.tally.permitted += tally.permitted
        self.tally.hostile += tally.hostile
        self.tally.broken += tally.broken
        self.buckets.update(dict(buckets))

    def p99_s(self) -> float:
        return quantile(sorted(self.buckets.items()), 0.99)


class Load:
    """One run of the test."""

    def __init__(self, node: Node, sessions: Sessions, rng: random.Random) -> None:
        self.node, self.sessions, self.rng = node, sessions, rng
        self.rows: dict[str, Row] = {}
        self.broken: list[str] = []
        self.usages: list[tuple[str, Usage]] = []
        self.alone_p99_s = 0.0
        self.baseline: Baseline | None = None
        self.began = time.monotonic()

    def run(self, minutes: float) -> None:
        """Everything, in about that time."""
        total = minutes * 60
        rounds = max(1, round(total / (_PHASES_IN_A_ROUND * _MOST_PHASE_S)))
        busy = total / rounds - _ENDS_OF_A_ROUND * _END_S
        phase_s = min(_MOST_PHASE_S, max(_LEAST_PHASE_S, busy / _PHASES_IN_A_ROUND))
        self.measure_alone()
        self.sessions.next_round()
        self.phase(faults.QUIET, phase_s)
        self.end_round("first")
        for number in range(1, rounds + 1):
            self.sessions.next_round()
            self.phase(faults.QUIET, _BEGIN_S)
            for phase in faults.PHASES:
                if phase.name not in self.node.skipped:
                    self.phase(phase, phase_s)
            self.end_round(f"round {number}")
            self.sessions.next_round()
            self.phase(faults.QUIET, _BEGIN_S)
            self.phase(faults.RESTARTS, phase_s)
            self.end_round(f"round {number}, daemon killed")

    def measure_alone(self) -> None:
        """How long a resident fetch takes in the daemon while nothing else happens."""
        slots, self.sessions.slots = self.sessions.slots, [Slot(0, 0, "probe")]
        self.sessions.circumstances = Circumstances("alone", faults.BOUND_MS)
        self.sessions.run_for(5)
        self.sessions.end_all()
        self.alone_p99_s = quantile(self.node.metrics().buckets(), 0.99)
        self.sessions.slots = slots

    def phase(self, phase: Phase, seconds: float) -> None:
        """Runs one phase, and counts what happened in it."""
        sessions, began = self.sessions, time.monotonic()
        before = self.node.metrics().buckets()
        started = sessions.circumstances.daemon_started
        sessions.tally = Tally()
        sessions.circumstances = Circumstances(
            phase.name, phase.bound_ms, phase.may_refuse, phase.may_not_connect, started
        )
        with phase.fault(self.node) if phase.fault else contextlib.nullcontext():
            phase.act(self.node, sessions, self.rng, seconds)
        sessions.run_for(faults.GRACE_S if phase.fault else 0)
        took = time.monotonic() - began
        if (status := self.node.manager.exit_status()) is not None:
            raise DaemonEnded(f"{phase.name}: the daemon ended with status {status}")
        buckets = self.node.metrics().buckets()
        if started == sessions.circumstances.daemon_started:
            buckets = since(buckets, before)
        row = self.rows.setdefault(phase.name, Row(phase.name))
        row.add(took, sessions.tally, buckets)
        self.say(phase.name)
        self.broken += sessions.tally.broken

    def end_round(self, name: str) -> None:
        """Ends all sessions; the daemon must use what it used before."""
        self.sessions.tally = Tally()
        self.sessions.end_all()
        usage = settled_usage(self.node, self.baseline, _SETTLE_S)
        self.usages.append((name, usage))
        if self.baseline is None:
            self.baseline = Baseline(usage)
        self.broken += [f"{name}: {leak}" for leak in self.baseline.leaks(usage)]
        self.broken += self.sessions.tally.broken
        if usage.lent_bytes or usage.sessions or usage.chunks or usage.waiting_calls:
            self.broken.append(f"{name}: not all was given back: {usage}")

    def say(self, phase: str) -> None:
        tally = self.sessions.tally
        alive = sum(slot.process is not None for slot in self.sessions.slots)
        print(
            f"{time.monotonic() - self.began:6.0f} s  {phase:16} {alive} sessions, "
            f"{tally.calls} calls, slowest {tally.slowest_ms} ms, "
            f"{sum(tally.permitted.values())} errors that the test caused, "
            f"{len(tally.broken)} that nothing permits",
            flush=True,
        )
        for line in tally.broken[:_SHOWN]:
            print(f"         {line}", flush=True)


class DaemonEnded(Exception):
    """The daemon ended by itself, so that the test cannot go on."""


def print_summary(load: Load) -> float:
    """Prints tables, and returns the worst ratio of a resident fetch's p99."""
    print("\nphase              seconds    calls  slowest call         p99 of a resident fetch")
    worst = 0.0
    for row in load.rows.values():
        ratio = row.p99_s() / load.alone_p99_s if load.alone_p99_s else 0.0
        worst = max(worst, ratio)
        slowest = f"{row.tally.slowest_ms} ms {row.tally.slowest_call}"
        print(
            f"{row.name:16} {row.seconds:9.0f} {row.tally.calls:8} {slowest:>20} "
            f"{row.p99_s() * 1e6:9.0f} us, {ratio:.1f}x"
        )
    print(f"alone: {load.alone_p99_s * 1e6:.0f} us")
    for row in load.rows.values():
        for error, count in sorted(row.tally.permitted.items()):
            print(f"{row.name}: {count} x {error}")
        refused = sum(row.tally.hostile.values())
        print(f"{row.name}: {refused} refusals of the users that misbehave")
    for name, usage in load.usages:
        print(f"in use after {name}: {usage}")
    for fault, why in load.node.skipped.items():
        print(f"SKIPPED: {fault}: {why}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("programs", type=Path, help="the folder of the sessions' programs")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("tools/load must run as root: its sessions have eight users", file=sys.stderr)
        return 2
    # Whatever ends the test, its processes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_BROKE))
    os.setgroups([])
    os.setgid(GROUP_ID)
    # Sessions inherit this. The daemon does not: see Node.start.
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    # Otherwise 50 processes on this CPU make the test late, and it stops them for longer than it
    # means to.
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    rng = random.Random(arguments.seed)
    replay = f"tools/load --minutes {arguments.minutes:g} --seed {arguments.seed}"
    print(f"{replay}: leases of {LEASE_S:.0f} s, the load on CPU {min(cpus)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mtload", dir="/tmp") as directory:
        home = Path(directory)
        home.chmod(0o711)
        with running_node(home, GROUP_ID, cpus) as node:
            if why := faults.cannot_slow_disk():
                node.skipped.setdefault("slow disk", why)
            sessions = Sessions(all_slots(), home, arguments.programs, rng)
            sessions.group_id = GROUP_ID
            load = Load(node, sessions, rng)
            try:
                load.run(arguments.minutes)
            except (DaemonEnded, OSError):  # OSError: it does not answer.
                load.broken += [*sessions.tally.broken, traceback.format_exc()]
            finally:
                sessions.kill_all()
            worst = print_summary(load)
            if load.broken:
                print("\nBROKEN:", *load.broken, f"To replay: {replay}", sep="\n  ")
                log = shutil.copy(home / "log", Path(tempfile.gettempdir()) / "tools-load.log")
                print(f"\nThe daemons' log is {log}. Its end:\n{node.log_tail()}")
                return _BROKE
    slow = worst > WORST_RATIO
    print(f"\nOK; a resident fetch took {worst:.1f}x as long as alone", "(SLOW)" if slow else "")
    return _ONLY_SLOW if slow else 0


if __name__ == "__main__":
    sys.exit(main())
