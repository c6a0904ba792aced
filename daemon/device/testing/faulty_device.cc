#include "daemon/device/testing/faulty_device.h"

#include <utility>

#include "base/status_macros.h"

namespace memtide {

void FaultyDevice::Fail(uint64_t operation, absl::Status status) {
  MutexLock lock(&mutex_);
  failures_[operation] = std::move(status);
}

void FaultyDevice::Hold(uint64_t operation) {
  MutexLock lock(&mutex_);
  to_hold_.insert(operation);
}

void FaultyDevice::AwaitHeld(uint64_t operation) {
  MutexLock lock(&mutex_);
  while (begun_ <= operation) changed_.Wait(&mutex_);
}

void FaultyDevice::Release() {
  MutexLock lock(&mutex_);
  to_hold_.clear();
  changed_.SignalAll();
}

absl::Status FaultyDevice::Begin() {
  MutexLock lock(&mutex_);
  const uint64_t operation = begun_++;
  changed_.SignalAll();
  while (to_hold_.count(operation) > 0) changed_.Wait(&mutex_);
  const auto failure = failures_.find(operation);
  return failure == failures_.end() ? absl::OkStatus() : failure->second;
}

std::vector<MemoryKind> FaultyDevice::kinds() const { return device_->kinds(); }

void FaultyDevice::AddHostMemory(char* memory, Bytes size) { device_->AddHostMemory(memory, size); }
void FaultyDevice::RemoveHostMemory(char* memory) { device_->RemoveHostMemory(memory); }

absl::StatusOr<std::unique_ptr<DeviceMemory>> FaultyDevice::Allocate(const std::string& name,
                                                                     Bytes size, MemoryKind kind) {
  MEMTIDE_RETURN_IF_ERROR(Begin());
  return device_->Allocate(name, size, kind);
}

absl::Status FaultyDevice::CopyIn(DeviceMemory& memory, Bytes offset, const char* host,
                                  Bytes size) {
  MEMTIDE_RETURN_IF_ERROR(Begin());
  return device_->CopyIn(memory, offset, host, size);
}

absl::Status FaultyDevice::CopyOut(const DeviceMemory& memory, Bytes offset, char* host,
                                   Bytes size) {
  MEMTIDE_RETURN_IF_ERROR(Begin());
  return device_->CopyOut(memory, offset, host, size);
}

absl::Status FaultyDevice::Zero(DeviceMemory& memory, Bytes offset, Bytes size) {
  MEMTIDE_RETURN_IF_ERROR(Begin());
  return device_->Zero(memory, offset, size);
}

}  // namespace memtide
