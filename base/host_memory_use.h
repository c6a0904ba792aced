// HostMemoryUse: host memory by what a device does with it. A value type.
#ifndef MEMTIDE_BASE_HOST_MEMORY_USE_H_
#define MEMTIDE_BASE_HOST_MEMORY_USE_H_

#include <cstdint>
#include <map>

#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

// All zero where nothing has to be pinned.
struct HostMemoryUse {
  Bytes pinned, unpinned;  // Their sum is what was added to the device.
  // The pinned buffers through which copies from and to unpinned memory go. Zero: there are none.
  Bytes staging;
  // The device reads host memory by the CPU's page tables: what counts as pinned is not held in
  // place, and need not be.
  bool coherent = false;
  // The node of all host memory. Absent: it is not placed, but for that of numa_node_by_device.
  absl::optional<int> numa_node;
  // Where devices are on several nodes: that of each, from which its jobs have their host memory.
  std::map<uint32_t, int> numa_node_by_device;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_HOST_MEMORY_USE_H_
