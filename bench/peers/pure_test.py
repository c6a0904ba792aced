"""The parts of bench/peers that need no DeepSpeed: buffer sizes, counters of /proc, log lines."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import observe
import settings

MIB = 2**20


class BuffersTest(unittest.TestCase):
    def test_all_buffers_together_are_no_larger_than_the_memory(self) -> None:
        for memory in (170 * MIB, 192 * MIB, 1000 * MIB):
            buffers = settings.Buffers.within(memory, 4 * 576**2)
            count = buffers.for_parameters + buffers.for_optimizer + 1
            self.assertLessEqual(count * buffers.elements * 4, memory)
            self.assertGreater((count + 1) * buffers.elements * 4, memory)

    def test_a_group_whose_last_parameter_is_the_largest_fits_a_buffer(self) -> None:
        buffers = settings.Buffers.within(192 * MIB, 4 * 576**2)
        self.assertLessEqual(buffers.group - 1 + buffers.largest_parameter, buffers.elements)

    def test_the_error_for_too_little_memory_names_the_bytes_needed(self) -> None:
        needed = 16 * 2 * 4 * 576**2 * 4
        with self.assertRaisesRegex(ValueError, str(needed)):
            settings.Buffers.within(needed - 1, 4 * 576**2)
        self.assertEqual(settings.Buffers.within(needed, 4 * 576**2).for_parameters, 3)

    def test_parameters_and_optimizer_are_in_files_and_none_of_them_in_memory(self) -> None:
        config = settings.zero_infinity(
            Path("/ssd"), 8, settings.Buffers.within(192 * MIB, 4 * 576**2)
        )
        zero = config["zero_optimization"]
        self.assertEqual(zero["offload_param"]["device"], "nvme")
        self.assertEqual(zero["offload_optimizer"]["device"], "nvme")
        self.assertEqual(zero["offload_param"]["max_in_cpu"], 0)


class ObserveTest(unittest.TestCase):
    def test_only_bytes_of_the_disk_count_not_those_of_system_calls(self) -> None:
        io = "rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: 1\n"
        self.assertEqual(observe.disk_bytes(io), (4096, 512))

    def test_shared_memory_counts_once_and_an_ended_process_not_at_all(self) -> None:
        trainer = observe.resident_bytes("RssAnon:\t 100 kB\nRssFile:\t 7 kB\nRssShmem:\t 30 kB\n")
        daemon = observe.resident_bytes("RssAnon:\t 10 kB\nRssShmem:\t 50 kB\n")
        ended = observe.resident_bytes("State:\tZ (zombie)\n")
        self.assertEqual(observe.together([trainer, daemon, ended]), 160 * 1024)


class LogTest(unittest.TestCase):
    def test_a_loss_is_read_from_the_log_bit_for_bit(self) -> None:
        entry = json.loads(settings.log_line(3, 0.1, 1.5))
        self.assertEqual(float.fromhex(entry["loss"]), 0.1)


if __name__ == "__main__":
    unittest.main()
