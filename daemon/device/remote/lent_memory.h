// RemoteDevice::Lent: the DeviceMemory that a caller of RemoteDevice::Allocate owns. The process
// that has the memory knows it by its number.
//
// Thread safety: that of RemoteDevice, whose lock it uses.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_LENT_MEMORY_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_LENT_MEMORY_H_

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/mutex.h"
#include "daemon/device/remote/messages.h"
#include "daemon/device/remote/remote_device.h"

namespace memtide {

class RemoteDevice::Lent : public DeviceMemory {
 public:
  Lent(RemoteDevice* device, std::string name, Bytes size, MemoryKind kind)
      : device_(device), name_(std::move(name)), size_(size), kind_(kind) {}
  ~Lent() override {
    device_->Release(*this);
    if (fd_ >= 0) close(fd_);
  }

  Bytes size() const override { return size_; }
  MemoryExport Export() const override {
    const MutexLock lock(&device_->mutex_);
    return {kind_, size_, fd_, ipc_handle_};
  }

  // The memory was allocated, or was again. The number of the descriptor stays, as another thread
  // may be about to duplicate it. REQUIRES: the lock of the device is held.
  void Receive(const DeviceAnswer& answer) {
    ipc_handle_ = answer.ipc_handle;
    if (fd_ < 0 || answer.descriptor < 0) {
      fd_ = answer.descriptor;
      return;
    }
    dup3(answer.descriptor, fd_, O_CLOEXEC);
    close(answer.descriptor);
  }

  DeviceRequest Allocation() const {
    DeviceRequest request;
    request.call = DeviceCall::kAllocate;
    request.kind = kind_;
    request.memory = number;
    request.size = size_;
    request.text = name_;
    return request;
  }

  uint64_t number = 0;

 private:
  RemoteDevice* const device_;
  const std::string name_;
  const Bytes size_;
  const MemoryKind kind_;
  int fd_ = -1;  // With the lock of the device, as ipc_handle_.
  std::string ipc_handle_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_LENT_MEMORY_H_
