// FaultyDevice: another device whose n-th operation fails or is held, for tests.
//
// Operations (Allocate, CopyIn, CopyOut, Zero) share one count from 0, in the order in which they
// begin. A failed operation does not reach the device. A held one blocks its caller until Release.
// `device` must outlive the FaultyDevice.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_DEVICE_TESTING_FAULTY_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_TESTING_FAULTY_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/device/device.h"

namespace memtide {

class FaultyDevice : public Device {
 public:
  explicit FaultyDevice(Device* device, size_t copies_in_flight = 1)
      : device_(device), copies_in_flight_(copies_in_flight) {}

  void Fail(uint64_t operation, absl::Status status);
  void Hold(uint64_t operation);
  // Waits until `operation` is being held.
  void AwaitHeld(uint64_t operation);
  // Resumes every held operation; from now on none is held.
  void Release();

  std::string Describe() const override { return device_->Describe() + ", with faults"; }
  std::vector<MemoryKind> kinds() const override;
  size_t copies_in_flight() const override { return copies_in_flight_; }
  NumaPlacement placement() const override { return device_->placement(); }
  HostMemoryUse host_memory() const override { return device_->host_memory(); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name, Bytes size,
                                                         MemoryKind kind) override;
  void AddHostMemory(char* memory, Bytes size) override;
  void RemoveHostMemory(char* memory) override;
  absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) override;
  absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) override;
  absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) override;

 private:
  // Counts an operation, waits if it is to be held, and returns the status that it should end with.
  absl::Status Begin();

  Device* const device_;
  const size_t copies_in_flight_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> to_hold_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_TESTING_FAULTY_DEVICE_H_
