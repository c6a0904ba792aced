#include "daemon/device/first_use/helper_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "daemon/device/first_use/helper.h"
#include "daemon/device/first_use/helper_protocol.h"

namespace memtide {
namespace {

// Making a context takes up to a second, and more while another process makes one. An asker waits
// for six answers of its helper, and says itself which of them did not come.
constexpr Duration kHelperPatience = std::chrono::seconds(6),
                   kAskerPatience = std::chrono::seconds(45);
constexpr Duration kEnding = std::chrono::seconds(2);

absl::Status SystemError(const std::string& call, int error) {
  return absl::UnavailableError(
      absl::StrCat("starting a helper process for the GPU: ", call, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<HelperProcess> HelperProcess::Start(const std::string& program, Role role,
                                                   int ordinal) {
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
  std::string arguments[] = {program, role == Role::kAsker ? kAskerFlag : kHelperFlag,
                             absl::StrCat(ordinal)};
  char* const argv[] = {&arguments[0][0], &arguments[1][0], &arguments[2][0], nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(sockets[1]);
  if (error != 0) {
    close(sockets[0]);
    return SystemError(program, error);
  }
  return HelperProcess(pid, sockets[0], role == Role::kAsker ? kAskerPatience : kHelperPatience);
}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      patience_(other.patience_) {}

HelperProcess::~HelperProcess() {
  if (pid_ < 0) return;
  close(socket_);
  kill(pid_, SIGKILL);
  // A process that hangs in the driver does not end before its call does. It is left to its end.
  const Instant deadline = Now() + kEnding;
  while (waitpid(pid_, nullptr, WNOHANG) == 0 && Now() < deadline) {
    // tidy(sleep): a child's end is known by waiting, or by a handler of the program's signals.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
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
