// RemoteDevice: a Device that is in a process of its own, which a failure of the device may take
// with it.
//
// This process has the books and the descriptors of the device's memory (memory_table.h), and the
// host memory. The other one maps host memory that is shared with it, and calls the device
// (device_server.h). When it ends, for whatever reason, all of the device's memory has lost its
// bytes: calls return UNAVAILABLE with the reason, and health() and the listener say so. Then it is
// started again, after pauses that grow. The new process gets the same host memory, and all
// DeviceMemory that is alive is allocated anew. So the device is usable again, and the bytes of its
// memory are zeros.
//
// A process that hangs in the driver does not end when it is killed, and its device stays lost.
// Only copies that are in flight wait for its end. Calls that make, share, add, remove or free
// memory do not, nor for one that is starting: one thread makes them for all devices.
//
// Thread safety: thread-safe. Log lines and what the listener gets come from any thread.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/numa.h"
#include "daemon/device/device.h"
#include "daemon/device/remote/device_process.h"
#include "daemon/device/remote/memory_table.h"

namespace memtide {

struct RemoteDeviceOptions {
  DeviceProcessOptions process;
  // Before a process that ended is started again; each failure doubles it.
  Duration first_pause = std::chrono::milliseconds(250), longest_pause = std::chrono::seconds(30);
};

class RemoteDevice : public Device {
 public:
  // Errors: those of DeviceProcess::Start.
  static absl::StatusOr<std::unique_ptr<RemoteDevice>> Open(const RemoteDeviceOptions& options);
  // REQUIRES: all of its DeviceMemory is destroyed.
  ~RemoteDevice() override;

  std::string Describe() const override { return opened_.text; }
  std::vector<MemoryKind> kinds() const override { return opened_.kinds; }
  size_t copies_in_flight() const override { return opened_.copies_in_flight; }
  bool maps_under_work() const override { return opened_.maps_under_work; }
  NumaPlacement placement() const override { return placement_; }
  HostMemoryUse host_memory() const override;
  DeviceHealth health() const override;
  void Listen(Listener listener) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name, Bytes size,
                                                         MemoryKind kind) override;
  void ShareHostMemory(char* memory, Bytes size, int fd) override;
  void UnshareHostMemory(char* memory) override;
  void AddHostMemory(char* memory, Bytes size) override;
  void RemoveHostMemory(char* memory) override;
  absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) override;
  absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) override;
  absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) override;

 private:
  class Lent;
  RemoteDevice(const RemoteDeviceOptions& options, std::unique_ptr<DeviceProcess> process);

  // UNAVAILABLE: the device is lost before the answer comes.
  absl::StatusOr<DeviceAnswer> Ask(DeviceProcess& process, const DeviceRequest& request);
  // Changes host memory, which cannot fail for the caller. A process that is starting gets the
  // change from Furnish.
  void Tell(const std::function<DeviceRequest(MemoryTable& memory)>& change);
  absl::Status Copy(DeviceCall call, const DeviceMemory& memory, Bytes offset, const char* host,
                    Bytes size);
  void Release(uint64_t number);
  void Note(const HostMemoryUse& use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  // Returns whether the daemon ends.
  bool Lose(const absl::Status& why);
  // Returns whether a new process is there. If not, the daemon ends.
  bool Restart();
  absl::Status StartAgain();
  absl::Status Furnish(DeviceProcess& process);
  void Report(const absl::Status& state);
  // The daemon ends: a lost device is not started again, and a process that hangs is left.
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RemoteDeviceOptions options_;
  const DeviceNotice opened_;  // By the first process.
  const NumaPlacement placement_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Gets the calls. Null: the device is lost.
  std::shared_ptr<DeviceProcess> process_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceProcess> starting_ ABSL_GUARDED_BY(mutex_);  // Gets them next. Or null.
  std::shared_ptr<DeviceProcess> watched_ ABSL_GUARDED_BY(mutex_);   // The last; it may be ending.
  DeviceHealth health_ ABSL_GUARDED_BY(mutex_);
  HostMemoryUse host_memory_ ABSL_GUARDED_BY(mutex_);
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false, is_reporting_ ABSL_GUARDED_BY(mutex_) = false;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  MemoryTable memory_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // Watches the process.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_
