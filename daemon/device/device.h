// Device: the seam to a GPU or to an emulation of one.
//
// All calls block. The Mover copies from copies_in_flight() threads for each direction, so that an
// implementation may keep a stream per direction and wait on it. Implementations:
// CudaDevice (a GPU), RemoteDevice (a device in a process of its own), EmulatedDevice (host memory
// with an optional rate and latency) and, in tests, FaultyDevice, which fails or delays the n-th
// call of another device.
//
// Errors: RESOURCE_EXHAUSTED if memory cannot be allocated; INTERNAL if a copy failed (the source
// is unchanged); DATA_LOSS if this memory has failed, and with it its bytes; UNAVAILABLE if the
// device, or this memory of it, is lost permanently.
#ifndef MEMTIDE_DAEMON_DEVICE_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/host_memory_use.h"
#include "base/memory_kind.h"
#include "base/numa.h"

namespace memtide {

// Device memory that other processes can map. Destroying the object frees the memory as soon as no
// process maps it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Bytes size() const = 0;
  // The descriptor or IPC handle with which a client maps the memory. This object owns the former.
  virtual MemoryExport Export() const = 0;
};

struct DeviceHealth {
  absl::Status state;   // Not OK: the device is lost, and why.
  uint64_t losses = 0;  // How often it was lost.
};

class Device {
 public:
  // Gets why the device is lost, whenever it is: all of its memory has lost its bytes. Gets OK when
  // it is usable again.
  using Listener = std::function<void(const absl::Status& state)>;

  virtual ~Device() = default;

  // "emulated device, 96 MiB, 4.0 GB/s": for logs.
  virtual std::string Describe() const = 0;

  // The kinds of memory that the device can export, the best first. Never empty.
  virtual std::vector<MemoryKind> kinds() const = 0;

  // How many copies of one direction the Mover begins before the first of them has ended. More than
  // one pays off where the next copy starts by itself when one ends.
  virtual size_t copies_in_flight() const { return 1; }

  // Whether a program may map and unmap the device's memory while its work on other memory runs.
  virtual bool maps_under_work() const { return true; }
  // Where host memory should be that it copies, and threads that copy or compute in it.
  virtual NumaPlacement placement() const { return {}; }
  virtual HostMemoryUse host_memory() const { return {}; }

  virtual DeviceHealth health() const { return {}; }
  // The listener is called from any thread, and at once if the device is lost now. Devices that are
  // never lost take no listener. Null ends that, and the use of the device, as this process ends:
  // when it returns no call of a listener is running, and calls that the device has not answered
  // two seconds later fail, although it may still read and write their host memory.
  virtual void Listen(Listener listener) {}

  // New memory that reads as zeros and can be exported as `kind`. REQUIRES: kinds() contains
  // `kind`; `size` is a non-zero multiple of 2 MiB.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name,
                                                                 Bytes size, MemoryKind kind) = 0;

  // Share all of a SharedMemory, whose descriptor is `fd`, before the first copy from or to it, and
  // unshare it after the last one. A device in this process needs none of that.
  virtual void ShareHostMemory(char* memory, Bytes size, int fd) {}
  virtual void UnshareHostMemory(char* memory) {}

  // Add host memory that is shared before the first copy from or to it, and remove it after the
  // last one. The device may pin it; if it cannot, or where it was not added, copies take more CPU
  // time and nothing fails.
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
