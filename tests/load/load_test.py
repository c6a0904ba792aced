"""The load test sees what it is there to see. Scripts that say something stand for the sessions."""

from __future__ import annotations

import random
import tempfile
import time
import unittest
from pathlib import Path

from latency import quantile, since
from sessions import LEASE_S, Circumstances, Sessions, Slot, Tally

_FULL = Circumstances("full disk", 1000, may_refuse=frozenset({"open"}))


class SessionsTest(unittest.TestCase):
    """One slot, whose processes run a script."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.home = Path(directory.name)
        self.slot = Slot(1, 0, "steps")
        self.sessions = Sessions([self.slot], self.home, self.home, random.Random(1))
        self.sessions.circumstances = Circumstances("quiet", 1000)

    def start(self, script: str) -> None:
        """Starts the only process."""
        program = self.home / "user_session"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        self.slot.start_at = 0.0
        self.sessions.run_for(0.01)
        self.slot.start_at = float("inf")

    def say(self, *lines: str, then: str = "exit 0", overslept: bool = False) -> Tally:
        """Runs a process that says the lines, and returns what the test makes of them."""
        self.sessions.tally = Tally()
        text = "sleep 0.2\n" * overslept + "".join(f"echo '{line}'\n" for line in lines)
        self.start(f"{text}{then}")
        if self.slot.process is not None:
            self.slot.process.overslept = overslept
        deadline = time.monotonic() + 30
        while self.slot.process is not None and time.monotonic() < deadline:
            self.sessions.run_for(0.01)
        return self.sessions.tally

    def broken(self, *lines: str, then: str = "exit 0") -> str:
        """The only line of what broke."""
        (line,) = self.say(*lines, then=then).broken
        return line

    def test_the_next_process_finds_the_last_step_or_the_next_one(self) -> None:
        self.assertEqual(self.say("opened", "at 0", "at 1", "at 2").broken, [])
        self.assertEqual(self.say("at 3", "at 4").broken, [])
        self.assertIn("finds step 3, but the last report was 4", self.broken("at 3"))
        self.assertIn("finds step 5, but the last report was 3", self.broken("at 5"))
        self.assertIn("goes from step 5 to 7", self.broken("at 5", "at 7"))
        self.assertIn("finds step 0, but the last report was 7", self.broken("at 0"))
        self.assertEqual(self.say("at 0", "at 1").broken, [])
        self.slot.reported_at -= 60
        self.assertEqual(self.say("at 0").broken, [], "its job has ended meanwhile")
        self.slot.step, self.slot.reported_at = 3, self.slot.reported_at - 60
        self.assertIn("finds step 1, but the last report was 3", self.broken("at 1"))

    def test_wrong_bytes_and_unknown_ends_are_faults(self) -> None:
        self.assertIn("wrong bytes: element 7", self.broken("wrong element 7", then="exit 5"))
        self.assertIn("wrong bytes: element 8", self.broken("zeros element 8", then="exit 5"))
        self.assertIn("ended with status 9", self.broken(then="exit 9"))
        self.assertIn("ended with status -11", self.broken(then="kill -SEGV $$"))

    def test_a_process_that_was_stopped_beyond_its_lease_may_read_zeros(self) -> None:
        tally = self.say("zeros element 7", then="exit 5", overslept=True)
        self.assertEqual(sum(tally.permitted.values()), 1)
        self.assertEqual(tally.broken, [])
        self.assertIn("wrong bytes", self.say("wrong 7", then="exit 5", overslept=True).broken[0])

    def test_a_process_that_went_on_too_late_may_have_lost_its_session(self) -> None:
        self.start("exec sleep 60")
        process = self.slot.process
        assert process is not None
        for late_s, overslept in ((0.0, False), (LEASE_S, True)):
            self.sessions.stop(process, 0.0, beyond_lease=False)
            process.stopped_at -= late_s
            self.sessions.resume_all()
            self.assertEqual((process.stopped_at, process.overslept), (0.0, overslept))
        self.sessions.kill(process)
        self.sessions.run_for(0.1)

    def test_a_call_beyond_the_bound_is_a_fault(self) -> None:
        tally = self.say("calls 7 1000 read")
        self.assertEqual((tally.calls, tally.slowest_ms, tally.broken), (7, 1000, []))
        self.assertIn("read took 1001 ms, over 1000 ms", self.broken("calls 1 1001 read"))

    def test_a_refusal_is_permitted_by_what_is_full(self) -> None:
        self.assertIn("open RESOURCE_EXHAUSTED: no room", self.broken("error open 8 no room"))
        self.sessions.circumstances = _FULL
        tally = self.say("error open 8 no room")
        self.assertEqual(dict(tally.permitted), {"open RESOURCE_EXHAUSTED: full disk": 1})
        self.assertEqual(tally.broken, [])
        self.assertIn("read RESOURCE_EXHAUSTED", self.broken("error read 8 no room"))
        self.assertIn("read DEADLINE_EXCEEDED", self.broken("error read 4 it waited"))

    def test_a_job_is_full_after_two_processes_that_made_no_step(self) -> None:
        full = "error allocate 8 no room"
        self.assertEqual(self.say("at 0", then="exit 3").broken, [])
        self.assertIn("allocate RESOURCE_EXHAUSTED", self.broken("at 0", full, then="exit 4"))
        self.assertEqual(self.say(full, then="exit 4").broken, [])
        self.assertEqual((self.slot.job, self.slot.begun), (1, 0))
        for end in ("at 0", "at 1"):
            self.say(end, then="exit 3")
        self.assertIn("allocate RESOURCE_EXHAUSTED", self.broken(full, then="exit 4"))

    def test_a_session_is_lost_with_its_daemon_only(self) -> None:
        self.assertIn("read UNAVAILABLE: gone", self.broken("error read 14 gone"))
        self.sessions.circumstances.daemon_started = time.monotonic() + 60
        tally = self.say("error read 14 gone", then="exit 3")
        self.assertEqual(dict(tally.permitted), {"read UNAVAILABLE: the daemon was killed": 1})

    def test_a_torn_chunk_needs_a_writer_that_died(self) -> None:
        self.assertIn("whose writer did not die", self.broken("torn"))
        self.assertEqual(self.say(then="exit 3").broken, [])
        self.assertEqual(self.say("torn").broken, [])

    def test_users_that_misbehave_may_be_refused_anything(self) -> None:
        self.slot.hostile = True
        (self.home / "hostile_session").symlink_to("user_session")
        tally = self.say("error open 8 no room", "calls 1 99999 fetch", then="exit 9")
        self.assertEqual((sum(tally.hostile.values()), tally.calls, tally.broken), (1, 0, []))


class LatencyTest(unittest.TestCase):
    """Quantiles by interpolation."""

    def test_a_quantile_lies_in_the_class_that_has_it(self) -> None:
        buckets = [(1.0, 50.0), (2.0, 100.0), (float("inf"), 100.0)]
        self.assertEqual(quantile(buckets, 0.5), 1.0)
        self.assertEqual(quantile(buckets, 0.75), 1.5)
        self.assertEqual(quantile([(1.0, 0.0), (float("inf"), 9.0)], 0.5), 1.0)
        self.assertEqual(quantile([], 0.5), 0.0)

    def test_only_what_was_added_counts(self) -> None:
        self.assertEqual(since([(1.0, 5.0), (2.0, 9.0)], [(1.0, 5.0), (2.0, 6.0)])[1], (2.0, 3.0))


if __name__ == "__main__":
    unittest.main()
