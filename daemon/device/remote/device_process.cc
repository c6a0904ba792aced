#include "daemon/device/remote/device_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// Besides the copies of both directions: a check of a copy, and a change of the memory.
constexpr size_t kOtherCalls = 2;
// How often a process that opens a device looks whether it still should.
constexpr Duration kLookAround = std::chrono::milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProcess>> DeviceProcess::Start(
    const DeviceProcessOptions& options) {
  MEMTIDE_ASSIGN_OR_RETURN(
      HelperProcess started,
      HelperProcess::Start(options.program, options.arguments, options.opening_patience));
  std::unique_ptr<DeviceProcess> process(new DeviceProcess(options, std::move(started)));
  MEMTIDE_RETURN_IF_ERROR(process->AwaitOpened());
  MEMTIDE_RETURN_IF_ERROR(process->MakeChannels());
  return process;
}

DeviceProcess::~DeviceProcess() {
  for (const int channel : channels_) close(channel);
}

absl::Status DeviceProcess::AwaitOpened() {
  const Instant deadline = Now() + options_.opening_patience;
  for (;;) {
    absl::StatusOr<HelperPacket> packet = ReceivePacket(process_.socket(), kLookAround);
    if (absl::IsDeadlineExceeded(packet.status())) {
      if (options_.is_cancelled()) return absl::CancelledError("the daemon ends");
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
  if (is_ending_) return -1;
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
  MEMTIDE_ASSIGN_OR_RETURN(HelperPacket packet, ReceivePacket(channel, options_.patience));
  return DecodeAnswer(std::move(packet));
}

absl::StatusOr<DeviceAnswer> DeviceProcess::Ask(const DeviceRequest& request) {
  const int channel = TakeChannel();
  if (channel >= 0) {
    absl::StatusOr<DeviceAnswer> answer = AskOn(channel, request);
    if (answer.ok()) {
      GiveBack(channel);
      return answer;
    }
    // A socket that was closed is known to Watch, which knows more of the reason.
    End(absl::IsUnavailable(answer.status()) ? "" : std::string(answer.status().message()));
  }
  const MutexLock lock(&mutex_);
  while (!has_ended_) changed_.Wait(&mutex_);
  return why_;
}

absl::StatusOr<DeviceAnswer> DeviceProcess::AskUnwatched(const DeviceRequest& request) {
  const int channel = TakeChannel();
  if (channel < 0) return absl::CancelledError("the daemon ends");
  absl::StatusOr<DeviceAnswer> answer = AskOn(channel, request);
  GiveBack(channel);
  return answer;
}

void DeviceProcess::End(const std::string& why) {
  const MutexLock lock(&mutex_);
  if (is_ending_) return;
  is_ending_ = true;
  reason_ = why;
  // Watch reads the end of the control socket then, which outlives it.
  process_.Kill();
  changed_.SignalAll();
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
    } else {
      lost = absl::UnavailableError(notice->text);
    }
  }
  {
    const MutexLock lock(&mutex_);
    if (!is_ending_) reason_ = broken;
    broken = reason_;
    is_ending_ = true;
    changed_.SignalAll();
  }
  if (!lost.ok()) return lost;
  return absl::UnavailableError(absl::StrCat(
      "its process ", broken.empty() ? process_.HowItEnded() : absl::StrCat("failed: ", broken)));
}

void DeviceProcess::AwaitEnd(const absl::Status& why) {
  process_.Kill();
  process_.AwaitEnd();
  const MutexLock lock(&mutex_);
  has_ended_ = true;
  why_ = why;
  changed_.SignalAll();
}

}  // namespace memtide
