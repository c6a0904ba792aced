// Gpu: what the configuration needs to know about a GPU before it opens it. A value type.
#ifndef MEMTIDE_DAEMON_DEVICE_GPU_H_
#define MEMTIDE_DAEMON_DEVICE_GPU_H_

#include <string>
#include <vector>

#include "base/bytes.h"

namespace memtide {

struct Gpu {
  std::string uuid;         // "GPU-..." or "MIG-...": names it to OpenCuda.
  std::string description;  // "0 (NAME, 80 GiB, GPU-...)"
  Bytes free, total;
  std::vector<std::string> others;  // Descriptions of the GPUs besides it.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_GPU_H_
