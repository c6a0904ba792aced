#include "daemon/device/remote/device_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// Besides the copies of both directions: a check of a copy, and a change of the memory.
constexpr size_t kOtherCalls = 2;
// How often what waits for a process looks whether it still should.
constexpr Duration kLookAround = std::chrono::milliseconds(100);
constexpr Duration kLeaving = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProcess>> DeviceProcess::Start(
    const DeviceProcessOptions& options) {
  MEMTIDE_ASSIGN_OR_RETURN(
      HelperProcess started,
      HelperProcess::Start(options.program, options.arguments, options.opening_patience));
  std::unique_ptr<DeviceProcess> process(new DeviceProcess(options, std::move(started)));
  absl::Status opened = process->AwaitOpened();
  if (opened.ok()) opened = process->MakeChannels();
  if (opened.ok()) return process;
  if (options.is_cancelled != nullptr) {
    // Another process would hang where this one does, and so on without a limit.
    process->process_.Kill();
    while (!process->process_.AwaitEnd(kLookAround) && !options.is_cancelled()) {
    }
  }
  return opened;
}

DeviceProcess::~DeviceProcess() {
  for (const int channel : channels_) close(channel);
}

absl::Status DeviceProcess::AwaitOpened() {
  const Instant deadline = Now() + options_.opening_patience;
  for (;;) {
    absl::StatusOr<HelperPacket> packet = ReceivePacket(process_.socket(), kLookAround);
    if (absl::IsDeadlineExceeded(packet.status())) {
      if (options_.is_cancelled != nullptr && options_.is_cancelled()) {
        return absl::CancelledError("the daemon ends");
      }
      if (Now() < deadline) continue;
      return absl::UnavailableError("its process does not open it in time");
    }
    if (!packet.ok()) {
      return absl::UnavailableError(absl::StrCat("its process ", process_.HowItEnded()));
    }
    MEMTIDE_ASSIGN_OR_RETURN(opened_, DecodeNotice(*std::move(packet)));
    if (opened_.what == DeviceNotice::What::kOpened) return absl::OkStatus();
    if (opened_.what != DeviceNotice::What::kWarning) {
      return absl::Status(opened_.code, opened_.text);
    }
    options_.warn(opened_.text);
  }
}

absl::Status DeviceProcess::MakeChannels() {
  const size_t count = 2 * opened_.copies_in_flight + kOtherCalls;
  while (channels_.size() < count) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      return absl::UnavailableError(
          absl::StrCat("a channel to the device's process: ", std::strerror(errno)));
    }
    channels_.push_back(sockets[0]);
    const absl::Status sent = SendPacket(process_.socket(), {"channel", sockets[1]});
    close(sockets[1]);
    MEMTIDE_RETURN_IF_ERROR(sent);
  }
  const MutexLock lock(&mutex_);
  free_ = channels_;
  return absl::OkStatus();
}

int DeviceProcess::TakeChannel() {
  const MutexLock lock(&mutex_);
  while (free_.empty() && !is_ending_) changed_.Wait(&mutex_);
  if (is_ending_ || Now() >= left_at_) return -1;
  const int channel = free_.back();
  free_.pop_back();
  return channel;
}

void DeviceProcess::GiveBack(int channel) {
  const MutexLock lock(&mutex_);
  free_.push_back(channel);
  changed_.Signal();
}

absl::StatusOr<DeviceAnswer> DeviceProcess::AskOn(int channel, const DeviceRequest& request) {
  MEMTIDE_RETURN_IF_ERROR(SendPacket(channel, Encode(request)));
  const Instant deadline = Now() + options_.patience;
  for (;;) {
    const Duration wait = std::clamp<Duration>(deadline - Now(), Duration::zero(), kLookAround);
    absl::StatusOr<HelperPacket> packet = ReceivePacket(channel, wait);
    if (packet.ok()) return DecodeAnswer(*std::move(packet));
    if (!absl::IsDeadlineExceeded(packet.status())) return packet.status();
    if (IsLeft()) return absl::DeadlineExceededError("no answer while the daemon ends");
    if (Now() >= deadline) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.patience);
      return absl::DeadlineExceededError(absl::StrCat("no answer in ", ms.count(), " ms"));
    }
  }
}

absl::StatusOr<DeviceAnswer> DeviceProcess::AskUnwatched(const DeviceRequest& request) {
  const int channel = TakeChannel();
  if (channel < 0) return absl::UnavailableError("the device's process is ending");
  absl::StatusOr<DeviceAnswer> answer = AskOn(channel, request);
  if (answer.ok()) {
    GiveBack(channel);
    return answer;
  }
  // A socket that was closed is known to Watch, which knows more of the reason.
  End(absl::IsUnavailable(answer.status()) ? "" : std::string(answer.status().message()));
  return absl::UnavailableError(answer.status().message());
}

absl::StatusOr<DeviceAnswer> DeviceProcess::Ask(const DeviceRequest& request) {
  absl::StatusOr<DeviceAnswer> answer = AskUnwatched(request);
  if (answer.ok() || IsLeft()) return answer;
  const bool is_copy = request.call == DeviceCall::kCopyIn || request.call == DeviceCall::kCopyOut;
  const MutexLock lock(&mutex_);
  while (is_copy ? !is_gone_ : !is_lost_) changed_.Wait(&mutex_);
  return why_;
}

void DeviceProcess::End(const std::string& why) {
  const MutexLock lock(&mutex_);
  if (is_ending_) return;
  reason_ = why;
  process_.Kill();
  HangUp();
}

void DeviceProcess::HangUp() {
  is_ending_ = true;
  shutdown(process_.socket(), SHUT_RDWR);
  for (const int channel : channels_) shutdown(channel, SHUT_RDWR);
  changed_.SignalAll();
}

void DeviceProcess::Leave() {
  const MutexLock lock(&mutex_);
  left_at_ = std::min(left_at_, Now() + kLeaving);
}

bool DeviceProcess::IsLeft() const {
  const MutexLock lock(&mutex_);
  return Now() >= left_at_;
}

absl::Status DeviceProcess::Watch() {
  absl::Status lost;
  std::string broken;
  while (lost.ok() && broken.empty()) {
    absl::StatusOr<HelperPacket> packet = ReceivePacket(process_.socket(), kForever);
    if (absl::IsUnavailable(packet.status())) break;
    const absl::StatusOr<DeviceNotice> notice =
        packet.ok() ? DecodeNotice(*std::move(packet)) : packet.status();
    if (!notice.ok()) {
      broken = std::string(notice.status().message());
    } else if (notice->what == DeviceNotice::What::kWarning) {
      options_.warn(notice->text);
    } else if (notice->what == DeviceNotice::What::kLost) {
      lost = absl::UnavailableError(notice->text);
    } else {
      broken = "it says again whether it is open";
    }
  }
  {
    const MutexLock lock(&mutex_);
    if (!is_ending_) reason_ = broken;
    broken = reason_;
    HangUp();
  }
  if (!lost.ok()) return lost;
  return absl::UnavailableError(absl::StrCat(
      "its process ", broken.empty() ? process_.HowItEnded() : absl::StrCat("failed: ", broken)));
}

void DeviceProcess::AwaitEnd(const absl::Status& why) {
  {
    const MutexLock lock(&mutex_);
    is_lost_ = true;
    why_ = why;
    HangUp();
  }
  process_.Kill();
  const Instant patient_until = Now() + options_.ending_patience;
  bool has_ended = false;
  do {
    has_ended = process_.AwaitEnd(kLookAround);
  } while (!has_ended && !(IsLeft() && Now() >= patient_until));
  if (!has_ended) process_.Leave();
  const MutexLock lock(&mutex_);
  is_gone_ = true;
  changed_.SignalAll();
}

}  // namespace memtide
