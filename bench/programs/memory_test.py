"""Memory that counts as a run's, and how a run that fails differs from one that takes too long."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import memory

MIB = 2**20

# Holds 64 MiB of its own, and maps 96 MiB of shared memory. So do its two children, of which one
# is named as a daemon is. They end with their input.
HOLDS = """
import ctypes, mmap, os, sys
own = os.urandom(64 << 20)
shared = mmap.mmap(-1, 96 << 20)
shared.write(bytes(96 << 20))
pids = []
for name in (b"memtided", b"loader"):
    pids.append(os.fork())
    if not pids[-1]:
        ctypes.CDLL(None).prctl(15, name)
        for page in range(0, 96 << 20, 4096):
            shared[page]
        pids = []
        break
os.write(1, b"%d" % len(pids))
sys.stdin.read()
for pid in pids:
    os.waitpid(pid, 0)
"""


def run(*arguments: str, most_seconds: float = 60) -> memory.Run:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", *arguments]
        return memory.run(command, Path(folder), os.environ, most_seconds)


class MemoryTest(unittest.TestCase):
    def test_a_daemon_counts_with_its_script_and_memory_that_both_map_counts_once(self):
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=pipe, stdout=pipe) as script:
            self.assertEqual(sorted(script.stdout.read(3)), sorted(b"002"))
            (daemon,) = memory.children_of(script.pid, "memtided")
            self.assertEqual(len(memory.children_of(script.pid, "")), 2)
            alone_bytes = memory.used_bytes([script.pid])
            both_bytes = memory.used_bytes([script.pid, daemon])
            script.stdin.close()
        # Beside what is held, an interpreter has 5 to 20 MiB.
        self.assertTrue(160 * MIB <= alone_bytes < 190 * MIB, alone_bytes)
        self.assertTrue(64 * MIB <= both_bytes - alone_bytes < 90 * MIB, both_bytes - alone_bytes)

    def test_the_peak_is_the_most_that_was_held_at_a_time(self):
        ended = run("import os; a = os.urandom(64 << 20); del a; a = os.urandom(64 << 20)")
        self.assertTrue(64 * MIB <= ended.peak_bytes < 100 * MIB, ended.peak_bytes)

    def test_a_program_that_fails_has_its_status_and_what_it_printed(self):
        ended = run("import sys; print('loss 1'); sys.exit('no data')")
        self.assertEqual((ended.status, ended.output, ended.errors), (1, "loss 1\n", "no data\n"))

    def test_a_program_that_takes_too_long_is_ended_and_has_no_status(self):
        ended = run("import signal; signal.pause()", most_seconds=0.2)
        self.assertIsNone(ended.status)
        self.assertLess(ended.seconds, 60)


if __name__ == "__main__":
    unittest.main()
