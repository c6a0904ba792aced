// OpenedDevice: a device that this daemon has opened, with the daemon's claim on it.
//
// The number of a device is its place in the vector that OpenDevices returns. Not thread-safe.
#ifndef MEMTIDE_DAEMON_OPENED_DEVICES_H_
#define MEMTIDE_DAEMON_OPENED_DEVICES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/host_memory_use.h"
#include "base/memory_kind.h"
#include "daemon/config/config.h"
#include "daemon/device/device.h"
#include "daemon/device/gpu_owners.h"

namespace memtide {

struct OpenedDevice {
  // The 16 bytes of the uuid. Empty: the device is emulated.
  std::string UuidBytes() const;

  std::unique_ptr<GpuOwnership> ownership;  // Null: other daemons do not see the device.
  std::unique_ptr<Device> device;
  Bytes pool;
  std::string uuid;  // "GPU-01234567-89ab-..." or "MIG-...".
};

// Opens the devices of the configuration and logs each. A GPU that cannot be opened is left out,
// with a warning; it is an error if the settings name it, or if no GPU is left. FAILED_PRECONDITION
// also if the GPUs have no kind of memory in common. `warnings` gets what `memtide status` shows.
absl::StatusOr<std::vector<OpenedDevice>> OpenDevices(const Config& config,
                                                      const std::string& socket_dir,
                                                      std::vector<std::string>* warnings);

// The kinds of memory that all of the devices can export, in the order of the first device.
// REQUIRES: there is a device.
std::vector<MemoryKind> CommonKinds(const std::vector<OpenedDevice>& devices);

// The use of host memory by the devices together, which all pin the same. Where one pins less than
// the others, its use counts.
HostMemoryUse HostMemoryOf(const std::vector<OpenedDevice>& devices);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_OPENED_DEVICES_H_
