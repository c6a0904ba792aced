// Descriptor: owns one file descriptor, and keeps it from outliving a fork.
//
// A forked child (a data loader's worker) must not hold the session's socket, or the daemon would
// not notice that the parent died, nor its memory, which could then not be given back. So every
// descriptor owned here is closed in a child by the fork handler that ForkGeneration installs;
// there, the owner's get() names nothing. Move-only, thread-compatible.
// At most kMaxDescriptors are tracked; more are still owned, but inherited.
#ifndef MEMTIDE_CLIENT_DESCRIPTOR_H_
#define MEMTIDE_CLIENT_DESCRIPTOR_H_

#include <cstdint>

namespace memtide::client {

class Descriptor {
 public:
  static constexpr int kMaxDescriptors = 4096;

  Descriptor() = default;
  // Takes ownership of `fd`; negative: owns nothing.
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  void Close();

  int fd_ = -1;
};

// How many times this process is a forked copy since the first call. A client belongs to the
// generation that opened it. The first call installs the fork handler.
uint64_t ForkGeneration();

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_DESCRIPTOR_H_
