// SocketDir: the directory of the daemon's sockets, held by one daemon at a time.
//
// The lock file `lock` in it (flock, released by the kernel with its holder, also after kill -9)
// says whose it is; only the holder removes stale sockets, and never one that still answers. The
// directory is made with mode 0750 when missing, and must be a directory of this uid, or root's,
// that nobody else may write to: who can write there can put a socket of their own in our place.
// Move-only through unique_ptr; the sockets are removed and the lock given back when destroyed.
#ifndef MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_
#define MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace memtide {

class SocketDir {
 public:
  // FAILED_PRECONDITION: another daemon holds it (its pid is named), or a socket in it answers.
  // PERMISSION_DENIED: owner or mode are wrong. INVALID_ARGUMENT: too long for a socket's path.
  static absl::StatusOr<std::unique_ptr<SocketDir>> Claim(const std::string& path);
  ~SocketDir();
  SocketDir(const SocketDir&) = delete;
  SocketDir& operator=(const SocketDir&) = delete;

  // Absolute.
  const std::string& path() const { return path_; }
  std::string FdSocketPath() const { return path_ + "/fd.sock"; }
  std::string GrpcSocketPath() const { return path_ + "/grpc.sock"; }
  // Where the address of the metrics endpoint is written, for who wants to scrape it.
  std::string MetricsAddressPath() const { return path_ + "/metrics_address"; }

 private:
  SocketDir(std::string path, int lock_fd);

  const std::string path_;
  const int lock_fd_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_
