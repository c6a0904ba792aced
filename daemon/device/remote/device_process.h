// DeviceProcess: one life of the process that serves a device (device_server.h), as the daemon sees
// it.
//
// It ends when it is killed, fails, reports that its device is lost, does not answer, or says what
// is no answer. Whatever it is, each call that was in flight returns UNAVAILABLE with the reason,
// and not before the process is gone: until then the GPU may go on writing to host memory.
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
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  // Asked while the device is being opened, which is then given up.
  std::function<bool()> is_cancelled = [] { return false; };
};

class DeviceProcess {
 public:
  // Returns when the device is open. The error of a device that cannot be opened is its own;
  // UNAVAILABLE: the process cannot be started, or ends.
  static absl::StatusOr<std::unique_ptr<DeviceProcess>> Start(const DeviceProcessOptions& options);
  // REQUIRES: no call is in flight.
  ~DeviceProcess();

  const DeviceNotice& opened() const { return opened_; }

  // Makes one call. UNAVAILABLE: the process has ended; waits until it has. An error of the device
  // is in the answer.
  absl::StatusOr<DeviceAnswer> Ask(const DeviceRequest& request);

  // The same before Watch was called. An error may come before the end of the process.
  absl::StatusOr<DeviceAnswer> AskUnwatched(const DeviceRequest& request);

  // Returns why the process ends, once it does or has to.
  absl::Status Watch();
  // Ends the process, waits until it has ended, and lets its calls return `why`.
  void AwaitEnd(const absl::Status& why);
  // Ends it for this reason, unless it ends already.
  void End(const std::string& why);

 private:
  DeviceProcess(const DeviceProcessOptions& options, HelperProcess process)
      : options_(options), process_(std::move(process)) {}

  absl::Status AwaitOpened();
  absl::Status MakeChannels();
  // -1: the process ends.
  int TakeChannel();
  void GiveBack(int channel);
  absl::StatusOr<DeviceAnswer> AskOn(int channel, const DeviceRequest& request);

  const DeviceProcessOptions options_;
  HelperProcess process_;
  DeviceNotice opened_;
  std::vector<int> channels_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<int> free_ ABSL_GUARDED_BY(mutex_);  // Channels without a call.
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false, has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Why this side ends it. Empty: the process has ended by itself.
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);  // Once it has ended.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_DEVICE_PROCESS_H_
