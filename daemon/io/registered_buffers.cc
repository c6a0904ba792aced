#include "daemon/io/registered_buffers.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/io/io_error.h"

namespace memtide {
namespace {

constexpr int kTableSize = 1 << 14;       // The kernel's limit.
constexpr Bytes kLargestBuffer = GiB(1);  // The kernel's limit.

}  // namespace

void RegisteredBuffers::Init(io_uring* ring) {
  ring_ = ring;
  const int result = io_uring_register_buffers_sparse(ring, kTableSize);
  if (result < 0) {
    // A kernel before 5.19 has no sparse tables. free_ stays empty then, so that Add does nothing.
    Refused(-result, Bytes());
    return;
  }
  for (int index = kTableSize - 1; index >= 0; --index) free_.push_back(index);
}

void RegisteredBuffers::Add(char* memory, Bytes size) {
  for (Bytes offset; offset < size;) {
    // Transfers work without registration, at a higher cost: not an error.
    if (free_.empty()) return;
    const Bytes part = std::min(kLargestBuffer, size - offset);
    char* const begin = memory + offset.count();
    const int index = free_.back();
    const int result = Update(index, begin, part);
    if (result < 0) {
      Refused(-result, part);
      return;
    }
    free_.pop_back();
    MEMTIDE_CHECK(buffers_.emplace(begin, Buffer{part, index, memory}).second) << "added twice";
    offset += part;
  }
}

void RegisteredBuffers::Remove(char* memory) {
  auto buffer = buffers_.lower_bound(memory);
  while (buffer != buffers_.end() && buffer->second.added_as == memory) {
    const int result = Update(buffer->second.index, nullptr, Bytes());
    MEMTIDE_CHECK(result >= 0) << ErrnoName(-result);
    free_.push_back(buffer->second.index);
    buffer = buffers_.erase(buffer);
  }
}

int RegisteredBuffers::Find(const char* memory, Bytes size) const {
  const auto after = buffers_.upper_bound(memory);
  if (after == buffers_.begin()) return -1;
  const auto& [begin, buffer] = *std::prev(after);
  const Bytes offset(static_cast<uint64_t>(memory - begin));
  // A request names one buffer, so a transfer across two of them goes unregistered.
  return offset + size <= buffer.size ? buffer.index : -1;
}

std::string RegisteredBuffers::Describe() const {
  MutexLock lock(&mutex_);
  return refusal_.empty() ? "registered buffers" : refusal_;
}

int RegisteredBuffers::Update(int index, char* memory, Bytes size) {
  iovec range{memory, size.count()};
  // With a tag, the kernel would post a completion once it has let go of the old buffer.
  const __u64 no_tag = 0;
  return io_uring_register_buffers_update_tag(ring_, index, &range, &no_tag, 1);
}

void RegisteredBuffers::Refused(int error, Bytes size) {
  MutexLock lock(&mutex_);
  if (!refusal_.empty()) return;
  refusal_ = absl::StrCat(
      "buffers not registered (", FormatBytes(size), " refused with ", ErrnoName(error),
      error == ENOMEM ? "; raise RLIMIT_MEMLOCK or grant CAP_IPC_LOCK" : "", ")");
}

}  // namespace memtide
