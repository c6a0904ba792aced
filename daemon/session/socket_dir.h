// SocketDir: the directory of the daemon's sockets, held by one daemon at a time.
//
// The holder of the lock file `lock` (flock, which the kernel releases even after kill -9) owns the
// directory. Only the holder removes stale sockets, and never one that still accepts connections. A
// missing directory is made with mode 0750. It must belong to this uid or to root and be writable
// by no other user, because a user who can write there could replace the sockets; and no other user
// may be able to replace it, or a directory above it. The destructor removes the sockets and
// releases the lock.
#ifndef MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_
#define MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class SocketDir {
 public:
  // FAILED_PRECONDITION: another daemon holds it (its pid is named), or a socket in it answers.
  // PERMISSION_DENIED: owner or mode, of it or of a directory above it, are wrong.
  // INVALID_ARGUMENT: too long for a socket's path.
  static absl::StatusOr<std::unique_ptr<SocketDir>> Claim(const std::string& path);
  ~SocketDir();
  SocketDir(const SocketDir&) = delete;
  SocketDir& operator=(const SocketDir&) = delete;

  // Absolute.
  const std::string& path() const { return path_; }
  std::string FdSocketPath() const { return path_ + "/fd.sock"; }
  std::string GrpcSocketPath() const { return path_ + "/grpc.sock"; }
  // The file with the address of the metrics endpoint, for scrapers.
  std::string MetricsAddressPath() const { return path_ + "/metrics_address"; }

 private:
  SocketDir(std::string path, OwnedFd directory, OwnedFd lock);

  const std::string path_;
  const OwnedFd directory_;
  const OwnedFd lock_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_SOCKET_DIR_H_
