"""The sessions of the load test: processes of several users, what they say, and whether what went
wrong may have gone wrong."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# Status codes, as in client/memtide.h.
_NAMES = {
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
LEASE_S = 8.0  # A session ends that is not renewed for that long.
_LOST = ("UNAVAILABLE", "UNAUTHENTICATED")
_END_S = 20.0
# A session renews after each third of its lease, so that a shorter stop cannot end it.
_LONG_STOP_S = LEASE_S / 2
_TIME_TO_LIVE_S = 12.0  # kTimeToLiveS of user_session.cc.
# Exit statuses of the programs.
_SESSION_LOST, _REFUSED, _HAS_READ_OTHER_BYTES = 3, 4, 5


@dataclass
class Tally:
    """The calls and errors, in one phase, of the sessions that behave well."""

    calls: int = 0
    slowest_ms: int = 0
    slowest_call: str = ""
    permitted: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


@dataclass
class Circumstances:
    """The test's effect on the node: what of it may fail, and how long a call may take."""

    phase: str = ""
    bound_ms: int = 0
    may_refuse: frozenset[str] = frozenset()  # Calls that RESOURCE_EXHAUSTED may answer now.
    may_not_connect: bool = False
    daemon_started: float = 0.0


@dataclass
class Slot:
    """One of the sessions: its processes follow each other."""

    number: int
    uid: int
    kind: str
    hostile: bool = False
    process: Process | None = None
    start_at: float = 0.0
    step: int = 0  # The last one that a process reported,
    reported_at: float = 0.0  # and when.
    may_be_torn: bool = False  # Its last process was killed, or lost its session.
    job: int = 0  # The number of its named job, in a round.
    begun: int = 0  # Processes that ended before the job's first step: it has what they allocated.


class Process:
    """One process of a slot."""

    def __init__(self, slot: Slot, command: list[str]) -> None:
        self.slot = slot
        self.started = time.monotonic()
        self.killed = False
        self.stopped_at = 0.0  # Zero: it runs.
        self.resume_at = 0.0
        self.last_resumed = 0.0
        self.overslept = False
        self.found_step = False
        self._partial = b""
        # The test itself goes before the load.
        self._process = subprocess.Popen(
            ["nice", "-n", str(-os.getpriority(os.PRIO_PROCESS, 0)), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def status(self) -> int | None:
        """The exit status, once the process has ended."""
        return self._process.poll()

    def lines(self) -> list[str]:
        """The lines that the process has printed since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output.fileno(), 65536):
                self._partial += data
        *whole, self._partial = self._partial.split(b"\n")
        return [line.decode(errors="replace") for line in whole]


class Sessions:
    """All slots. `tally` is that of the phase; `circumstances` are set by the phases."""

    def __init__(self, slots: list[Slot], home: Path, programs: Path, rng: random.Random) -> None:
        self.slots = slots
        self.circumstances = Circumstances()
        self.tally = Tally()
        self.group_id = 0
        self.pause_ms = 60
        self._home = home
        self._programs = programs
        self._rng = rng
        self._round = 0
        self._selector = selectors.DefaultSelector()

    def next_round(self) -> None:
        """Named jobs of the last round have ended: those of the next have other names."""
        self._round += 1
        for slot in self.slots:
            slot.step, slot.start_at = 0, time.monotonic() + self._rng.random()
            slot.job = slot.begun = 0

    def run_for(self, seconds: float) -> None:
        """Starts what is to be started, and reads what is said."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            for slot in self.slots:
                if slot.process is None and now >= slot.start_at:
                    self._start(slot)
                elif slot.process and slot.process.stopped_at and now >= slot.process.resume_at:
                    self.resume(slot.process)
            self._read(min(0.05, deadline - now))

    def stop(self, process: Process, seconds: float, *, beyond_lease: bool) -> None:
        """Stops a process; `run_for` lets it go on."""
        process.stopped_at = time.monotonic()
        process.resume_at = process.stopped_at + seconds
        process.overslept = process.overslept or beyond_lease
        process.signal(signal.SIGSTOP)

    def resume(self, process: Process) -> None:
        now = time.monotonic()
        # This test may have had no CPU for longer than it meant to stop the process.
        process.overslept = process.overslept or now - process.stopped_at > _LONG_STOP_S
        process.stopped_at, process.last_resumed = 0.0, now
        process.signal(signal.SIGCONT)

    def resume_all(self) -> None:
        """Lets all stopped processes go on at once."""
        for slot in self.slots:
            if slot.process and slot.process.stopped_at:
                self.resume(slot.process)

    def kill(self, process: Process) -> None:
        process.killed = True
        process.signal(signal.SIGKILL)

    def end_all(self) -> None:
        """Lets all sessions end. Sessions that behave well do so within a bound."""
        deadline = time.monotonic() + _END_S
        self.resume_all()
        for slot in self.slots:
            slot.start_at = float("inf")
            if slot.process:
                slot.process.signal(signal.SIGTERM)
                slot.process.signal(signal.SIGCONT)
        while any(slot.process for slot in self.slots):
            if time.monotonic() > deadline:
                for slot in self.slots:
                    if slot.process and not slot.process.killed:
                        if not slot.hostile:
                            self._break(slot, f"does not end within {_END_S:.0f} s of SIGTERM")
                        self.kill(slot.process)
            self._read(0.05)

    def kill_all(self) -> None:
        """Leaves no process, whatever has gone wrong."""
        for slot in self.slots:
            if slot.process:
                self.kill(slot.process)

    def _start(self, slot: Slot) -> None:
        seed = self._rng.getrandbits(30)
        program = "hostile_session" if slot.hostile or slot.kind == "probe" else "user_session"
        command = [str(self._programs / program), str(self._home / "s")]
        command += [str(slot.uid), str(self.group_id), str(seed)]
        if program == "user_session":
            command.append(str(self.pause_ms))
        command.append(slot.kind)
        if slot.kind == "steps":
            command.append(f"job-{self._round}-{slot.number}-{slot.job}")
        slot.process = Process(slot, command)
        self._selector.register(slot.process.output, selectors.EVENT_READ, slot)

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self._hear(key.data)
        for slot in self.slots:
            if slot.process and slot.process.status() is not None:
                self._hear(slot)
                self._ended(slot, slot.process)

    def _hear(self, slot: Slot) -> None:
        assert slot.process is not None
        for line in slot.process.lines():
            what, _, rest = line.partition(" ")
            if what == "calls":
                count, slowest, call = rest.split()
                self._calls(slot, slot.process, int(count), int(slowest), call)
            elif what == "error":
                call, code, *message = rest.split(" ", 2)
                self._error(slot, slot.process, call, int(code), " ".join(message))
            elif what == "at":
                self._at(slot, slot.process, int(rest))
            elif what == "torn":
                if slot.may_be_torn:
                    self.tally.permitted["read DATA_LOSS: its writer died"] += 1
                else:
                    self._break(slot, "a chunk is torn whose writer did not die")
            elif what == "zeros" and slot.process.overslept:
                # Its memory is gone, and its client is about to hear of it (decision 41).
                self.tally.permitted["read zeros: it was stopped beyond its lease"] += 1
            elif what in ("wrong", "zeros"):
                self._break(slot, f"wrong bytes: {rest}")

    def _calls(self, slot: Slot, process: Process, count: int, slowest_ms: int, call: str) -> None:
        if slot.hostile:
            return
        self.tally.calls += count
        # The time for which the process was stopped is no fault of the daemon.
        if process.stopped_at or time.monotonic() - process.last_resumed < slowest_ms / 1000 + 2:
            return
        if slowest_ms > self.tally.slowest_ms:
            self.tally.slowest_ms, self.tally.slowest_call = slowest_ms, call
        if slowest_ms > self.circumstances.bound_ms:
            self._break(slot, f"{call} took {slowest_ms} ms, over {self.circumstances.bound_ms} ms")

    def _error(self, slot: Slot, process: Process, call: str, code: int, message: str) -> None:
        name = _NAMES.get(code, str(code))
        if slot.hostile:
            self.tally.hostile[f"{slot.kind}: {call} {name}"] += 1
            return
        cause = self._cause(process, call, name)
        if not cause and (call, name) == ("allocate", "RESOURCE_EXHAUSTED") and slot.begun > 1:
            # Unlike memtide's own client, these programs do not free what the job has.
            cause = "processes before it ended before the first step of its job"
            slot.job, slot.begun = slot.job + 1, 0
        if cause:
            self.tally.permitted[f"{call} {name}: {cause}"] += 1
        else:
            self._break(slot, f"{call} {name}: {message}")

    def _cause(self, process: Process, call: str, name: str) -> str:
        """The act of the test that permits the error; nothing: it is a fault."""
        circumstances = self.circumstances
        if name in _LOST:
            if process.overslept:
                return "it was stopped beyond its lease"
            if process.started < circumstances.daemon_started:
                return "the daemon was killed"
            if call == "open" and circumstances.may_not_connect:
                return circumstances.phase
        if name == "RESOURCE_EXHAUSTED" and call in circumstances.may_refuse:
            return circumstances.phase
        return ""

    def _at(self, slot: Slot, process: Process, step: int) -> None:
        """A process finds the last reported step, or the one that it was about to report. None, if
        it was stopped before it had opened its session, until the job had ended."""
        now = time.monotonic()
        has_ended = step == 0 and now - slot.reported_at > _TIME_TO_LIVE_S
        if not (process.found_step or has_ended or step in (slot.step, slot.step + 1)):
            self._break(slot, f"finds step {step}, but the last report was {slot.step}")
        if process.found_step and step != slot.step + 1:
            self._break(slot, f"goes from step {slot.step} to {step}")
        process.found_step = True
        if step > 0:
            slot.begun = 0
        slot.step, slot.reported_at = step, now

    def _ended(self, slot: Slot, process: Process) -> None:
        status = process.status()
        expected = process.killed or status in (0, _SESSION_LOST, _REFUSED, _HAS_READ_OTHER_BYTES)
        if not slot.hostile and not expected:
            self._break(slot, f"ended with status {status}")
        self._selector.unregister(process.output)
        process.output.close()
        slot.may_be_torn = process.killed or status in (_SESSION_LOST, _HAS_READ_OTHER_BYTES)
        slot.begun += slot.step == 0 and (process.found_step or slot.may_be_torn)
        slot.process = None
        if slot.start_at != float("inf"):
            slot.start_at = time.monotonic() + self._rng.random() * 1.5

    def _break(self, slot: Slot, message: str) -> None:
        self.tally.broken.append(
            f"{self.circumstances.phase}: session {slot.number} ({slot.kind}, uid {slot.uid}): "
            f"{message}"
        )
