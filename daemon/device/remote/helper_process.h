// HelperProcess: a process of the daemon's own program that does for the daemon what may fail with
// the process that does it. Its end of the socket is kHelperSocket. Use from one thread, except
// socket() and Kill().
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_HELPER_PROCESS_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_HELPER_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace memtide {

class HelperProcess {
 public:
  // Starts `program ARGUMENT...`, which waits `patience` for each answer. UNAVAILABLE: it cannot be
  // started.
  static absl::StatusOr<HelperProcess> Start(const std::string& program,
                                             const std::vector<std::string>& arguments,
                                             Duration patience);
  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&&) = delete;
  // Ends the process. One that hangs in the driver is left to its end after two seconds.
  ~HelperProcess();

  int socket() const { return socket_; }

  // Returns what follows "ok" in the answer, with the space before it. INTERNAL: the answer is
  // "error", with its text. UNAVAILABLE: the process has ended. DEADLINE_EXCEEDED: it does not
  // answer.
  absl::StatusOr<std::string> Ask(const std::string& question, int descriptor = -1);
  absl::Status Send(const std::string& question, int descriptor = -1);
  absl::StatusOr<std::string> Answer();

  // Asks the kernel to end the process. REQUIRES: it has not ended for AwaitEnd, and was not left.
  void Kill() const;
  // How the process has ended, such as "ended by signal 9"; "hangs", if it does not within two
  // seconds.
  std::string HowItEnded() const;
  // Waits until the process has ended, and with it all that it had in flight. False: it has not
  // within `patience`.
  bool AwaitEnd(Duration patience);
  // Leaves the process to its end, without waiting for it.
  void Leave() { pid_ = -1; }

 private:
  HelperProcess(pid_t pid, int socket, Duration patience)
      : pid_(pid), socket_(socket), patience_(patience) {}

  bool HasEnded(Duration patience, siginfo_t* how) const;

  pid_t pid_ = -1;  // Negative: it has ended, or was left.
  int socket_ = -1;
  Duration patience_{0};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_HELPER_PROCESS_H_
