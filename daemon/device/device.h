// Device: the seam to a GPU, or to what plays its part.
//
// Blocking calls, made by the mover from one thread per direction (and by no other), so that an
// implementation may keep a stream per direction and wait on it. Implementations: CudaDevice, a
// GPU; EmulatedDevice (host memory with an optional rate and latency); and in tests FaultyDevice,
// which fails or delays the n-th call of another device. Errors: RESOURCE_EXHAUSTED when memory
// cannot be had, INTERNAL when a copy failed (the source is untouched), UNAVAILABLE when the
// device, or this memory of it, is lost for good.
#ifndef MEMTIDE_DAEMON_DEVICE_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/memory_kind.h"

namespace memtide {

// Memory of a device that can be shared with another process. Destroying it gives the memory back
// as soon as nobody maps it any more.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Bytes size() const = 0;
  // For passing to a client, which maps it. The descriptor, if it has one, is this object's.
  virtual MemoryExport Export() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "emulated device, 96 MiB, 4.0 GB/s": for logs.
  virtual std::string Describe() const = 0;

  // How its memory can be lent, the best way first. Never empty.
  virtual std::vector<MemoryKind> kinds() const = 0;

  // Fresh memory, reading as zeros, to be lent as `kind`. REQUIRES: kinds() has it; size is a
  // multiple of 2 MiB and not zero.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name,
                                                                 Bytes size, MemoryKind kind) = 0;

  // Host memory that copies will come from and go to, before the first and after the last of them:
  // the device may pin it. Where it cannot, copies are slower; nothing fails.
  virtual void AddHostMemory(char* memory, Bytes size) = 0;
  virtual void RemoveHostMemory(char* memory) = 0;

  // Copies between host memory and [offset, offset + size) of `memory`, returning when the bytes
  // have arrived. REQUIRES: `memory` came from this device; the ranges are inside and disjoint.
  virtual absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) = 0;
  virtual absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host,
                               Bytes size) = 0;
  virtual absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_DEVICE_H_
