// Machine: what defaults and limits of the configuration depend on, read once at start.
//
// A value, so that tests can make up machines.
#ifndef MEMTIDE_DAEMON_CONFIG_MACHINE_H_
#define MEMTIDE_DAEMON_CONFIG_MACHINE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "daemon/device/gpu.h"

namespace memtide {

// A file system, as a directory on it sees it.
struct FreeSpace {
  uint64_t file_system = 0;
  Bytes free;
};

struct Machine {
  // That new programs can have without swapping, within the limits of this process's cgroup.
  Bytes available_memory;
  // Where a user's sockets and data go; empty: unknown.
  std::string socket_dir, ssd_dir;
  // Of the directory, or, while it is not made, of the nearest parent that is.
  std::function<absl::StatusOr<FreeSpace>(const std::string& directory)> free_space;
  // See daemon/device/open_cuda.h.
  std::function<absl::StatusOr<Gpu>(const std::string& device)> inspect_gpu;
};

// The machine that we run on. How to look at its GPUs is the caller's to say: whoever does links
// CUDA.
absl::StatusOr<Machine> ThisMachine();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_MACHINE_H_
