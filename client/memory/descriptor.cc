#include "client/memory/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace memtide::client {
namespace {

// One bit per tracked descriptor number, for AfterForkInChild. The bits are atomics instead of
// being guarded by a lock, because another thread may hold any lock at the moment of the fork.
constexpr int kBitsPerWord = 64;
std::atomic<uint64_t> tracked[Descriptor::kMaxDescriptors / kBitsPerWord];
std::atomic<uint64_t> fork_generation{0};

void Track(int fd) {
  if (fd < Descriptor::kMaxDescriptors) {
    tracked[fd / kBitsPerWord].fetch_or(uint64_t{1} << (fd % kBitsPerWord));
  }
}

void Untrack(int fd) {
  if (fd < Descriptor::kMaxDescriptors) {
    tracked[fd / kBitsPerWord].fetch_and(~(uint64_t{1} << (fd % kBitsPerWord)));
  }
}

void AfterForkInChild() {
  fork_generation.fetch_add(1);
  for (int word = 0; word < Descriptor::kMaxDescriptors / kBitsPerWord; ++word) {
    const uint64_t bits = tracked[word].exchange(0);
    for (int bit = 0; bit < kBitsPerWord; ++bit) {
      if ((bits >> bit) & 1) close(word * kBitsPerWord + bit);
    }
  }
}

}  // namespace

Descriptor::Descriptor(int fd) : fd_(fd) {
  if (fd_ >= 0) Track(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Descriptor::~Descriptor() { Close(); }

void Descriptor::Close() {
  if (fd_ < 0) return;
  // Untrack before close(): a child forked between the two then merely inherits the descriptor. In
  // the other order it could close an unrelated descriptor that reused the number.
  Untrack(fd_);
  close(std::exchange(fd_, -1));
}

uint64_t ForkGeneration() {
  static const int installed = pthread_atfork(nullptr, nullptr, AfterForkInChild);
  static_cast<void>(installed);
  return fork_generation.load();
}

}  // namespace memtide::client
