// Report: comparisons as a table for people and as JSON for programs. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_REPORT_H_
#define MEMTIDE_DAEMON_REPLAY_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/replay/compare.h"

namespace memtide {

struct Comparison {
  std::string trace;  // Its file.
  std::string made_by;
  Bytes chunk_size;
  uint32_t chunks = 0, device_slots = 0, host_slots = 0;
  size_t iterations = 0;  // Counted ones.
  std::vector<Outcome> outcomes;
};

std::string AsTable(const Comparison& comparison);
// One array of objects, on lines of its own.
std::string AsJson(const std::vector<Comparison>& comparisons);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_REPORT_H_
