// RemoteDevice: a Device that is in a process of its own, which a failure of the device may take
// with it.
//
// This process has the books, the descriptors of the device's memory, and the host memory. The
// other one maps host memory that is shared with it, and calls the device (device_server.h). When
// it ends, for whatever reason, all of the device's memory has lost its bytes: calls return
// UNAVAILABLE with the reason, and health() and the listener say so. Then it is started again,
// after pauses that grow. The new process gets the same host memory, and all DeviceMemory that is
// alive is allocated anew. So the device is usable again, and the bytes of its memory are zeros.
//
// Thread safety: thread-safe. Log lines and what the listener gets come from any thread.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
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
  // A range that is shared with the process.
  struct Shared {
    uint64_t number = 0;
    Bytes size;
    int fd = -1;                   // A duplicate.
    std::map<Bytes, Bytes> added;  // Sizes by offset.
  };
  // A call that changes which memory there is, one at a time: a new process gets all of it.
  class Change {
   public:
    explicit Change(RemoteDevice* device);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    RemoteDevice* const device_;
  };

  RemoteDevice(const RemoteDeviceOptions& options, std::unique_ptr<DeviceProcess> process);

  // UNAVAILABLE: the device is lost, or is lost before the answer comes.
  absl::StatusOr<DeviceAnswer> Ask(const DeviceRequest& request);
  // A change of host memory, which cannot fail for its caller.
  void Tell(const DeviceRequest& request);
  absl::Status Copy(DeviceCall call, const DeviceMemory& memory, Bytes offset, const char* host,
                    Bytes size);
  // Writes into the request where `host` is. REQUIRES: the range of the request is shared.
  Shared& Locate(const char* host, DeviceRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(Lent* memory);
  void Note(const HostMemoryUse& use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  // Returns whether the device is being destroyed.
  bool Lose(const absl::Status& why);
  // Returns the new process, or null if the device is being destroyed.
  std::shared_ptr<DeviceProcess> Restart();
  absl::Status StartAgain();
  absl::Status Furnish(DeviceProcess& process);
  void Report(const absl::Status& state);

  const RemoteDeviceOptions options_;
  const DeviceNotice opened_;  // By the first process.
  const NumaPlacement placement_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Null: the device is lost.
  std::shared_ptr<DeviceProcess> process_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceProcess> starting_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);  // OK: it is usable.
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
  HostMemoryUse host_memory_ ABSL_GUARDED_BY(mutex_);
  bool is_changing_ ABSL_GUARDED_BY(mutex_) = false, is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reporting_ ABSL_GUARDED_BY(mutex_) = false;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  // Changed within a Change only.
  std::map<char*, Shared> shared_ ABSL_GUARDED_BY(mutex_);
  std::set<Lent*> lent_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // Watches the process.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_REMOTE_DEVICE_H_
