// RemoteDevice's thread, which watches the process of the device and starts the next one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/device/remote/remote_device.h"

namespace memtide {

void RemoteDevice::Report(const absl::Status& state) {
  Listener listener;
  {
    const MutexLock lock(&mutex_);
    while (is_reporting_) changed_.Wait(&mutex_);
    if (listener_ == nullptr) return;
    listener = listener_;
    is_reporting_ = true;
  }
  listener(state);
  const MutexLock lock(&mutex_);
  is_reporting_ = false;
  changed_.SignalAll();
}

void RemoteDevice::Run() {
  bool is_running = true;
  while (is_running) {
    std::shared_ptr<DeviceProcess> process;
    {
      const MutexLock lock(&mutex_);
      process = watched_;
    }
    const absl::Status how = process->Watch();
    const absl::Status why = absl::UnavailableError(
        absl::StrCat(Describe(), " was lost (", how.message(),
                     "): what its memory held is lost, copies in host memory and on SSD are kept. "
                     "memtided starts to use it again by itself; if it does not work, look at "
                     "nvidia-smi and dmesg"));
    const bool is_closing = Lose(why);
    process->AwaitEnd(why);
    is_running = !is_closing && Restart();
  }
}

bool RemoteDevice::Lose(const absl::Status& why) {
  {
    const MutexLock lock(&mutex_);
    process_ = nullptr;
    health_.state = why;
    if (is_closing_) return true;
    ++health_.losses;
    Note(HostMemoryUse());
  }
  options_.process.warn(std::string(why.message()));
  // Before any call that was in flight returns: what comes after this is known to be lost.
  Report(why);
  return false;
}

bool RemoteDevice::Restart() {
  std::string said;
  for (Duration pause = options_.first_pause;;
       pause = std::min(2 * pause, options_.longest_pause)) {
    {
      const MutexLock lock(&mutex_);
      const Instant until = Now() + pause;
      while (!is_closing_ && Now() < until) changed_.WaitFor(&mutex_, until - Now());
      if (is_closing_) return false;
    }
    const absl::Status started = StartAgain();
    if (started.ok()) {
      options_.process.warn(absl::StrCat(Describe(), " is used again"));
      Report(absl::OkStatus());
      return true;
    }
    const std::string line =
        absl::StrCat(Describe(), " cannot be used yet: ", std::string(started.message()));
    if (line != said) options_.process.warn(line);
    said = line;
  }
}

absl::Status RemoteDevice::StartAgain() {
  DeviceProcessOptions options = options_.process;
  options.is_cancelled = [this] {
    const MutexLock lock(&mutex_);
    return is_closing_;
  };
  MEMTIDE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceProcess> process, DeviceProcess::Start(options));
  if (process->opened().kinds != opened_.kinds) {
    return absl::FailedPreconditionError("it passes its memory in other ways than before");
  }
  {
    const MutexLock lock(&mutex_);
    if (is_closing_) return absl::CancelledError("the daemon ends");
    starting_ = process;
    memory_.BeginReplay();
  }
  const absl::Status furnished = Furnish(*process);
  {
    const MutexLock lock(&mutex_);
    watched_ = process;
    starting_ = nullptr;
    memory_.EndReplay();
  }
  if (!furnished.ok()) process->AwaitEnd(furnished);
  return furnished;
}

// Sends a process that is starting what it does not have yet, until there is nothing more.
absl::Status RemoteDevice::Furnish(DeviceProcess& process) {
  for (;;) {
    absl::optional<DeviceRequest> request;
    {
      const MutexLock lock(&mutex_);
      if (is_closing_) return absl::CancelledError("the daemon ends");
      request = memory_.TakeUnsent();
      if (!request.has_value()) {
        process_ = watched_ = std::move(starting_);
        health_.state = absl::OkStatus();
        return absl::OkStatus();
      }
    }
    MEMTIDE_ASSIGN_OR_RETURN(const DeviceAnswer answer, process.AskUnwatched(*request));
    MEMTIDE_RETURN_IF_ERROR(answer.status);
    const MutexLock lock(&mutex_);
    Note(answer.host_memory);
    memory_.Receive(*request, answer);
  }
}

}  // namespace memtide
