// DeviceProcess: one life of the process that serves a device (device_server.h), as the daemon sees
// it.
//
// It ends when it is killed, fails, reports that its device is lost, does not answer, or says what
// is no answer. Whatever it is, each call that was in flight returns UNAVAILABLE with the reason,
// when it is known. A copy does so when the process is gone: until then the GPU may read and write
// host memory. A process that hangs in the driver may never be gone.
//
// Thread safety: thread-safe, except that one thread calls Watch and then AwaitEnd.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_PROCESS_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/device/remote/helper_process.h"
#include "daemon/device/remote/messages.h"

namespace memtide {

struct DeviceProcessOptions {
  std::string program;
  std::vector<std::string> arguments;
  // Opening a GPU includes asking it what it can do (first_use/first_use.h).
  Duration opening_patience = std::chrono::seconds(90);
  // A copy takes milliseconds, and so does pinning a slot.
  Duration patience = std::chrono::seconds(60);
  // How long the daemon waits for the process when it ends. The kernel frees the memory of a
  // process that is killed, of which a GPU may have pinned much.
  Duration ending_patience = std::chrono::seconds(10);
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  // Asked while the device is being opened, which is then given up, and while a process that has
  // not opened it ends. Null: such a process is left to its end after two seconds.
  std::function<bool()> is_cancelled;
};

class DeviceProcess {
 public:
  // Returns when the device is open. The error of a device that cannot be opened is its own;
  // UNAVAILABLE: the process cannot be started, or ends.
  static absl::StatusOr<std::unique_ptr<DeviceProcess>> Start(const DeviceProcessOptions& options);
  // REQUIRES: no call is in flight.
  ~DeviceProcess();

  const DeviceNotice& opened() const { return opened_; }

  // Makes one call. UNAVAILABLE: the process ends, for the reason that AwaitEnd gets. An error of
  // the device is in the answer. REQUIRES: another thread calls Watch and AwaitEnd.
  absl::StatusOr<DeviceAnswer> Ask(const DeviceRequest& request);
  // The same without waiting for the reason, which is found by Watch.
  absl::StatusOr<DeviceAnswer> AskUnwatched(const DeviceRequest& request);

  // Returns why the process ends, once it does or has to.
  absl::Status Watch();
  // Ends the process, lets its calls return `why`, and waits until it has ended.
  void AwaitEnd(const absl::Status& why);
  // Ends it for this reason, unless it ends already.
  void End(const std::string& why);
  // The daemon ends: two seconds later calls fail, and a process that was killed ending_patience
  // ago is left to its end.
  void Leave();

 private:
  DeviceProcess(const DeviceProcessOptions& options, HelperProcess process)
      : options_(options), process_(std::move(process)) {}

  absl::Status AwaitOpened();
  absl::Status MakeChannels();
  // -1: the process ends.
  int TakeChannel();
  void GiveBack(int channel);
  absl::StatusOr<DeviceAnswer> AskOn(int channel, const DeviceRequest& request);
  // Calls in flight and Watch see the end of their sockets, although a process that hangs in the
  // driver keeps its ends open.
  void HangUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLeft() const;

  const DeviceProcessOptions options_;
  HelperProcess process_;
  DeviceNotice opened_;
  std::vector<int> channels_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<int> free_ ABSL_GUARDED_BY(mutex_);  // Channels without a call.
  // It has to end; why is known; it is gone, or left to its end.
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false, is_lost_ ABSL_GUARDED_BY(mutex_) = false,
                  is_gone_ ABSL_GUARDED_BY(mutex_) = false;
  // Why this side ends it. Empty: the process has ended by itself.
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);  // Once it is lost.
  Instant left_at_ ABSL_GUARDED_BY(mutex_) = Instant::max();
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_PROCESS_H_
