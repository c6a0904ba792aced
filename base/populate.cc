#include "base/populate.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "base/bytes.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace memtide {
namespace {

// To populate this takes 0.4 ms at best, and to start a thread a tenth of a millisecond.
constexpr Bytes kSmallestPart = MiB(4);

int PopulateOnThisThread(char* data, size_t size) {
  // The kernel asks to repeat the call after a signal or a passing lack of resources.
  while (madvise(data, size, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

}  // namespace

size_t PopulatingThreads() { return std::max<size_t>(1, std::thread::hardware_concurrency() / 4); }

int PopulateWrite(char* data, size_t size, size_t threads) {
  const size_t parts = std::min(threads, std::max<size_t>(1, size / kSmallestPart.count()));
  const Bytes equal((size + parts - 1) / parts);
  const size_t part = RoundDown(equal + kHugePage - Bytes(1), kHugePage).count();
  std::atomic<int> error{0};
  const auto populate = [&](size_t begin) {
    const int failed = PopulateOnThisThread(data + begin, std::min(part, size - begin));
    if (failed != 0) error = failed;
  };
  std::vector<std::thread> others;
  for (size_t begin = part; begin < size; begin += part) {
    try {
      others.emplace_back(populate, begin);
    } catch (const std::system_error&) {  // The process has as many threads as it may have.
      populate(begin);
    }
  }
  populate(0);
  for (std::thread& other : others) other.join();
  return error;
}

}  // namespace memtide
