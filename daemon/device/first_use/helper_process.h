// HelperProcess: a process of the daemon's own program that does a part of asking a GPU. Use from
// one thread.
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROCESS_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROCESS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace memtide {

class HelperProcess {
 public:
  // "--gpu-asker" runs RunGpuAsker (first_use.h), and "--gpu-helper" runs RunGpuHelper (helper.h).
  enum class Role { kAsker, kHelper };

  // Starts `program ROLE ORDINAL`. UNAVAILABLE: it cannot be started.
  static absl::StatusOr<HelperProcess> Start(const std::string& program, Role role, int ordinal);
  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&&) = delete;
  // Ends the process. One that hangs in the driver is left to its end after two seconds.
  ~HelperProcess();

  // Returns what follows "ok" in the answer, with the space before it. INTERNAL: the answer is
  // "error", with its text. UNAVAILABLE: the process has ended. DEADLINE_EXCEEDED: it does not
  // answer.
  absl::StatusOr<std::string> Ask(const std::string& question, int descriptor = -1);
  absl::Status Send(const std::string& question, int descriptor = -1);
  absl::StatusOr<std::string> Answer();

 private:
  HelperProcess(pid_t pid, int socket, Duration patience)
      : pid_(pid), socket_(socket), patience_(patience) {}

  pid_t pid_ = -1;
  int socket_ = -1;
  Duration patience_{0};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_PROCESS_H_
