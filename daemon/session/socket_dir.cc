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
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/parent_directories.h"
#include "base/status_macros.h"
#include "daemon/session/seqpacket.h"

namespace memtide {
namespace {

constexpr mode_t kDirectoryMode = 0750;
constexpr char kFdSocket[] = "fd.sock";
constexpr char kGrpcSocket[] = "grpc.sock";
constexpr char kMetricsAddress[] = "metrics_address";

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
absl::Status RemoveStaleSocket(const std::string& path, int directory, const std::string& name,
                               int type) {
  // All goes through descriptors, so that it is one socket, in the directory that was checked.
  const OwnedFd found(openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found.valid() && errno == ENOENT) return absl::OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string by_descriptor = absl::StrCat("/proc/self/fd/", found.get());
  std::memcpy(address.sun_path, by_descriptor.data(), by_descriptor.size());
  const OwnedFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!found.valid() || !probe.valid()) {
    return absl::InternalError(absl::StrCat("probing \"", path, "/", name, "\": ", ErrnoText()));
  }
  const bool connects =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  // EAGAIN comes from a listener whose queue is full: it lives, too.
  if (connects || errno == EAGAIN) {
    return absl::FailedPreconditionError(absl::StrCat(
        "socket_dir: something answers at \"", path, "/", name,
        "\" though its lock is free. Stop that process, or choose another --socket-dir"));
  }
  if (errno == ENOENT) {
    return absl::FailedPreconditionError(
        "/proc is not mounted: memtided reaches the sockets of its directory through it");
  }
  if (unlinkat(directory, name.c_str(), 0) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot remove the stale socket \"", path, "/", name, "\": ", ErrnoText()));
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
  OwnedFd directory(open(absolute.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_RDONLY));
  if (!directory.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket_dir: \"", absolute, "\": ", ErrnoText()));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckOwnerAndMode(absolute, directory.get()));
  if (const absl::Status parents = CheckParents(absolute); !parents.ok()) {
    return absl::Status(parents.code(), absl::StrCat("socket_dir: ", parents.message()));
  }
  OwnedFd lock(openat(directory.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                      S_IRUSR | S_IWUSR));
  if (!lock.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open \"", absolute, "/lock\": ", ErrnoText()));
  }
  MEMTIDE_RETURN_IF_ERROR(TakeLock(absolute, lock.get()));
  // This process has the lock, so a socket here was left by a daemon that was killed.
  MEMTIDE_RETURN_IF_ERROR(RemoveStaleSocket(absolute, directory.get(), kFdSocket, SOCK_SEQPACKET));
  MEMTIDE_RETURN_IF_ERROR(RemoveStaleSocket(absolute, directory.get(), kGrpcSocket, SOCK_STREAM));
  return std::unique_ptr<SocketDir>(
      new SocketDir(std::move(absolute), std::move(directory), std::move(lock)));
}

SocketDir::SocketDir(std::string path, OwnedFd directory, OwnedFd lock)
    : path_(std::move(path)), directory_(std::move(directory)), lock_(std::move(lock)) {}

SocketDir::~SocketDir() {
  // The lock is released last: until then no other daemon can have sockets here.
  for (const char* const name : {kFdSocket, kGrpcSocket, kMetricsAddress}) {
    unlinkat(directory_.get(), name, 0);
  }
}

}  // namespace memtide
