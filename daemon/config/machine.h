// Machine: the properties of a machine on which defaults and limits of the configuration depend,
// read once at start. Memory that the descriptor store has from the last daemon counts as free,
// because this daemon restores it.
//
// It is a value, so that tests can construct any machine.
#ifndef MEMTIDE_DAEMON_CONFIG_MACHINE_H_
#define MEMTIDE_DAEMON_CONFIG_MACHINE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "daemon/device/gpu.h"
#include "daemon/recovery/persisted_memory.h"
#include "daemon/settings/accounts.h"

namespace memtide {

// The file system of a directory: its device number, and the bytes free on it.
struct FreeSpace {
  uint64_t file_system = 0;
  Bytes free;
};

struct Machine {
  // Memory that new programs can use without swapping, within the limits of this process's cgroup.
  Bytes available_memory;
  PersistedMemory persisted;
  // The default directories of a user's sockets and data. Empty: unknown.
  std::string socket_dir, ssd_dir;
  // Returns the free space of the directory, or of its nearest existing parent.
  std::function<absl::StatusOr<FreeSpace>(const std::string& directory)> free_space;
  // Accounts of the machine, or of a test.
  Accounts accounts;
  // GpuUuids and InspectGpu of daemon/device/open_cuda.h, or a test's.
  std::function<absl::StatusOr<std::vector<std::string>>()> gpu_uuids;
  std::function<absl::StatusOr<Gpu>(const std::string& device)> inspect_gpu;
};

// Reads the properties of this machine. Leaves GPUs to the caller, so that only callers that
// set them link CUDA.
absl::StatusOr<Machine> ThisMachine(const PersistedMemory& persisted = {});

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_CONFIG_MACHINE_H_
