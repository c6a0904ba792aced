// OwnedFd: a file descriptor that is closed when its OwnedFd is destroyed. Move-only.
#ifndef MEMTIDE_DAEMON_IO_OWNED_FD_H_
#define MEMTIDE_DAEMON_IO_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace memtide {

class OwnedFd {
 public:
  OwnedFd() = default;
  // Takes ownership of `fd`; a negative one, as after a failed open(), is no descriptor.
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  // Passes the ownership to the caller.
  int Release() { return std::exchange(fd_, -1); }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_OWNED_FD_H_
