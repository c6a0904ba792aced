// Device: the seam to a GPU, or to what plays its part.
//
// Blocking calls, made by the mover from one thread per direction (and by no other), so that an
// implementation may keep a stream per direction and wait on it. Implementations: EmulatedDevice
// (host memory with an optional rate and latency), and in tests FaultyDevice, which fails or delays
// the n-th call of another device. Errors: RESOURCE_EXHAUSTED when memory cannot be had, INTERNAL
// when a copy failed (the source is untouched), UNAVAILABLE when the device is lost for good.
#ifndef MEMTIDE_DAEMON_DEVICE_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace memtide {

// Memory of a device that can be shared with another process by its descriptor. Destroying it gives
// the memory back as soon as nobody maps it any more.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // For passing to a client, which maps it. Owned by this object.
  virtual int fd() const = 0;
  virtual Bytes size() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "emulated device, 96 MiB, 4.0 GB/s": for logs.
  virtual std::string Describe() const = 0;

  // Fresh memory, reading as zeros. REQUIRES: size is a multiple of 2 MiB and not zero.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name,
                                                                 Bytes size) = 0;

  // Copies between host memory and [offset, offset + size) of `memory`, returning when the bytes
  // have arrived. REQUIRES: `memory` came from this device; the ranges are inside and disjoint.
  virtual absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) = 0;
  virtual absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host,
                               Bytes size) = 0;
  virtual absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_DEVICE_H_
