#include "daemon/device/remote/helper_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/device/remote/packet.h"

namespace memtide {
namespace {

constexpr Duration kEnding = std::chrono::seconds(2);
constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(20);

absl::Status SystemError(const std::string& call, int error) {
  return absl::UnavailableError(
      absl::StrCat("starting a helper process for the GPU: ", call, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<HelperProcess> HelperProcess::Start(const std::string& program,
                                                   const std::vector<std::string>& arguments,
                                                   Duration patience) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return SystemError("socketpair", errno);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], kHelperSocket);
  // The daemon's threads block signals that end it, and the helper inherits that.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(sockets[1]);
  if (error != 0) {
    close(sockets[0]);
    return SystemError(program, error);
  }
  return HelperProcess(pid, sockets[0], patience);
}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      patience_(other.patience_) {}

HelperProcess::~HelperProcess() {
  if (socket_ >= 0) close(socket_);
  if (pid_ < 0) return;
  Kill();
  AwaitEnd(kEnding);
}

// A process that hangs in the driver does not end before its call does.
bool HelperProcess::HasEnded(Duration patience, siginfo_t* how) const {
  *how = {};
  const Instant deadline = Now() + patience;
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    // An error: the kernel has forgotten the process, where SIGCHLD is ignored.
    if (waitid(P_PID, static_cast<id_t>(pid_), how, WEXITED | WNOHANG | WNOWAIT) != 0) return true;
    if (how->si_pid != 0) return true;
    if (Now() >= deadline) return false;
    // tidy(sleep): a child's end is known by waiting, or by a handler of the program's signals.
    std::this_thread::sleep_for(pause);
  }
}

std::string HelperProcess::HowItEnded() const {
  siginfo_t how;
  if (!HasEnded(kEnding, &how)) return "hangs";
  return absl::StrCat("ended ", how.si_code == CLD_EXITED ? "with status " : "by signal ",
                      how.si_status);
}

bool HelperProcess::AwaitEnd(Duration patience) {
  siginfo_t how;
  if (!HasEnded(patience, &how)) return false;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return true;
}

void HelperProcess::Kill() const {
  MEMTIDE_CHECK(pid_ > 0) << pid_;
  kill(pid_, SIGKILL);
}

absl::Status HelperProcess::Send(const std::string& question, int descriptor) {
  return SendPacket(socket_, {question, descriptor});
}

absl::StatusOr<std::string> HelperProcess::Answer() {
  MEMTIDE_ASSIGN_OR_RETURN(const HelperPacket packet, ReceivePacket(socket_, patience_));
  if (packet.text.compare(0, 2, "ok") == 0) return packet.text.substr(2);
  return absl::InternalError(absl::StripPrefix(packet.text, "error "));
}

absl::StatusOr<std::string> HelperProcess::Ask(const std::string& question, int descriptor) {
  MEMTIDE_RETURN_IF_ERROR(Send(question, descriptor));
  return Answer();
}

}  // namespace memtide
