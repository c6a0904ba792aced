// Descriptor: owns one file descriptor, which a forked child does not inherit.
//
// A forked child (such as a data loader's worker) must not hold the session's socket, or the daemon
// would not notice that the parent died; nor descriptors of lent memory, which the daemon could
// then not free. A fork handler, installed by the first ForkGeneration(), closes every tracked
// descriptor in the child; get() of the child's copies is then a number without meaning. At most
// kMaxDescriptors are tracked; further ones are owned but inherited. Move-only, thread-compatible.
#ifndef MEMTIDE_CLIENT_MEMORY_DESCRIPTOR_H_
#define MEMTIDE_CLIENT_MEMORY_DESCRIPTOR_H_

#include <cstdint>

namespace memtide::client {

class Descriptor {
 public:
  static constexpr int kMaxDescriptors = 8192;

  Descriptor() = default;
  // Takes ownership of `fd`. A negative `fd` owns nothing.
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

// The number of forks between the process of the first call and this one. The first call installs
// the fork handler. A client belongs to the generation that opened it.
uint64_t ForkGeneration();

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_DESCRIPTOR_H_
