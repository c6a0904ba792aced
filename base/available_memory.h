// AvailableMemory: how much memory this process could still fill without anybody being killed.
//
// The machine's MemAvailable, or what is left of the limit of a cgroup that we are in (v1 or v2,
// ours or one above), whichever is less; page cache counts as available in both. An estimate, for
// refusing what cannot work: others allocate too.
#ifndef MEMTIDE_BASE_AVAILABLE_MEMORY_H_
#define MEMTIDE_BASE_AVAILABLE_MEMORY_H_

#include <string>

#include "base/bytes.h"

namespace memtide {

struct AvailableMemory {
  Bytes bytes;
  // Whose the limit is: "this machine", or "cgroup /sys/fs/cgroup/...".
  std::string limited_by;
};

// `root` comes before every path that is read; for tests.
AvailableMemory GetAvailableMemory(const std::string& root = "");

}  // namespace memtide

#endif  // MEMTIDE_BASE_AVAILABLE_MEMORY_H_
