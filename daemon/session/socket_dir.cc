#include "daemon/session/socket_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr mode_t kDirectoryMode = 0750;

std::string ErrnoText() { return std::strerror(errno); }

// "/grpc.sock" is the longest name; sun_path ends with a zero.
absl::Status CheckLength(const std::string& path) {
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - sizeof("/grpc.sock");
  if (path.size() <= kLongest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("socket_dir: \"", path, "\" has ", path.size(),
                                                 " characters; a socket's path allows ", kLongest,
                                                 ". Choose a shorter one"));
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket_dir: cannot make the parent of \"", path, "\": ", error.message()));
  }
  if (mkdir(path.c_str(), kDirectoryMode) == 0) {
    // mkdir applies the umask to the mode; chmod does not.
    if (chmod(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
  } else if (errno == EEXIST) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("socket_dir: cannot make \"", path, "\": ", ErrnoText()));
}

absl::Status CheckOwnerAndMode(const std::string& path, int directory_fd) {
  struct stat info;
  if (fstat(directory_fd, &info) != 0) {
    return absl::InternalError(absl::StrCat("socket_dir: \"", path, "\": ", ErrnoText()));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("socket_dir: \"", path, "\" belongs to uid ",
                                                    info.st_uid, ", not to uid ", geteuid(),
                                                    " or root. Choose a directory of your own"));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "socket_dir: \"%s\" has mode %04o: others may write there and replace a socket. Use "
        "chmod go-w",
        path, info.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::Status TakeLock(const std::string& path, int lock_fd) {
  // The kernel drops the lock when the process ends, so a crash leaves no stale one.
  if (flock(lock_fd, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    const ssize_t size = pread(lock_fd, pid, sizeof(pid) - 1, 0);
    return absl::FailedPreconditionError(absl::StrCat(
        "socket_dir: another memtided (pid ", size > 0 ? absl::StripSuffix(pid, "\n") : "unknown",
        ") serves \"", path, "\". Stop it, or choose another --socket-dir"));
  }
  // The pid is for the message of the next daemon that finds the lock taken.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock_fd, 0) != 0 ||
      pwrite(lock_fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return absl::InternalError(absl::StrCat("writing ", path, "/lock: ", ErrnoText()));
  }
  return absl::OkStatus();
}

// A socket that answers belongs to a living process, whatever the lock file says.
absl::Status RemoveStaleSocket(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return absl::InternalError(absl::StrCat("socket: ", ErrnoText()));
  // EAGAIN comes from a listener whose queue is full: it lives, too.
  const bool lives =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;
  close(probe);
  if (lives) {
    return absl::FailedPreconditionError(absl::StrCat(
        "socket_dir: something answers at \"", path,
        "\" though its lock is free. Stop that process, or choose another --socket-dir"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot remove the stale socket \"", path, "\": ", ErrnoText()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketDir>> SocketDir::Claim(const std::string& path) {
  std::string absolute = std::filesystem::absolute(path).lexically_normal().string();
  if (absolute.size() > 1) absolute = std::string(absl::StripSuffix(absolute, "/"));
  MEMTIDE_RETURN_IF_ERROR(CheckLength(absolute));
  MEMTIDE_RETURN_IF_ERROR(MakeDirectory(absolute));
  // O_NOFOLLOW: the owner of a symbolic link could point it elsewhere after the checks.
  const int directory_fd = open(absolute.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_RDONLY);
  if (directory_fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket_dir: \"", absolute, "\": ", ErrnoText()));
  }
  const absl::Cleanup close_directory = [directory_fd] { close(directory_fd); };
  MEMTIDE_RETURN_IF_ERROR(CheckOwnerAndMode(absolute, directory_fd));
  const int lock_fd =
      openat(directory_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (lock_fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open \"", absolute, "/lock\": ", ErrnoText()));
  }
  absl::Cleanup close_lock = [lock_fd] { close(lock_fd); };
  MEMTIDE_RETURN_IF_ERROR(TakeLock(absolute, lock_fd));
  // This process has the lock, so a socket here was left by a daemon that was killed.
  MEMTIDE_RETURN_IF_ERROR(RemoveStaleSocket(absolute + "/fd.sock", SOCK_SEQPACKET));
  MEMTIDE_RETURN_IF_ERROR(RemoveStaleSocket(absolute + "/grpc.sock", SOCK_STREAM));
  std::move(close_lock).Cancel();
  return std::unique_ptr<SocketDir>(new SocketDir(std::move(absolute), lock_fd));
}

SocketDir::SocketDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

SocketDir::~SocketDir() {
  // The lock is released last: until then no other daemon can have sockets at these paths.
  unlink(FdSocketPath().c_str());
  unlink(GrpcSocketPath().c_str());
  unlink(MetricsAddressPath().c_str());
  close(lock_fd_);
}

}  // namespace memtide
