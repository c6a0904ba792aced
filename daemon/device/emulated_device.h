// EmulatedDevice: a Device made of host memory, at the speed of a configured link.
//
// For development, tests and nodes without a GPU. The memory is SharedMemory, which clients map as
// they map host regions. Each direction has a link of its own: calls queue for it, and a transfer
// holds it for size / bytes_per_second and returns `latency` later, or when the bytes are copied if
// that takes longer. Zeroing costs the latency alone. The engine, not this class, enforces the
// capacity.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_DEVICE_EMULATED_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_EMULATED_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/device/device.h"

namespace memtide {

struct EmulatedDeviceOptions {
  Bytes capacity;  // Only described.
  // Rate of each direction. Zero: as fast as memory allows.
  Bytes bytes_per_second;
  Duration latency{0};
};

class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatedDeviceOptions& options);

  std::string Describe() const override;
  std::vector<MemoryKind> kinds() const override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name, Bytes size,
                                                         MemoryKind kind) override;
  void AddHostMemory(char* memory, Bytes size) override;
  void RemoveHostMemory(char* memory) override;
  absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) override;
  absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) override;
  absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) override;

 private:
  class Link {
   public:
    // Takes the link for `busy` from `now`, or from when it is free; returns when that ends.
    Instant Take(Instant now, Duration busy);

   private:
    Mutex mutex_;
    Instant free_at_ ABSL_GUARDED_BY(mutex_);
  };

  Duration TimeFor(Bytes size) const;

  const EmulatedDeviceOptions options_;
  Link in_, out_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_EMULATED_DEVICE_H_
