// HostMemoryUse: host memory by what a device does with it. A value type.
#ifndef MEMTIDE_BASE_HOST_MEMORY_USE_H_
#define MEMTIDE_BASE_HOST_MEMORY_USE_H_

#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

// All zero where nothing has to be pinned.
struct HostMemoryUse {
  Bytes pinned, unpinned;  // Their sum is what was added to the device.
  // The pinned buffers through which copies from and to unpinned memory go. Zero: there are none.
  Bytes staging;
  absl::optional<int> numa_node;  // That of all host memory. Absent: it is not placed.
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_HOST_MEMORY_USE_H_
