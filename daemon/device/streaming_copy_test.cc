#include "daemon/device/streaming_copy.h"

#include <cstring>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace memtide {
namespace {

std::string RandomBytes(size_t size) {
  std::minstd_rand random(7);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Every size class around the threshold, and every alignment of either end to a cache line's.
TEST(NtCopyTest, CopiesExactlyTheRangeAtAnyAlignment) {
  const std::string from = RandomBytes(MiB(2).count());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4097}, MiB(1).count() - 1, MiB(1).count(),
                            MiB(1).count() + 321}) {
    for (const size_t shift : {0, 1, 63, 64, 100}) {
      std::string to(size + 256, '#');
      StreamCopy(&to[shift], &from[3 * shift], Bytes(size));
      EXPECT_EQ(to.compare(shift, size, from, 3 * shift, size), 0) << size << " at " << shift;
      EXPECT_EQ(to.substr(0, shift), std::string(shift, '#')) << size << " at " << shift;
      EXPECT_EQ(to.substr(shift + size), std::string(256 - shift, '#')) << size << " at " << shift;
    }
  }
}

TEST(NtCopyTest, ZeroesExactlyTheRangeAtAnyAlignment) {
  for (const size_t size : {size_t{0}, size_t{1}, MiB(1).count() - 1, MiB(1).count() + 321}) {
    for (const size_t shift : {0, 1, 63, 64, 100}) {
      std::string to(size + 256, '#');
      StreamZero(&to[shift], Bytes(size));
      EXPECT_EQ(to,
                std::string(shift, '#') + std::string(size, '\0') + std::string(256 - shift, '#'))
          << size << " at " << shift;
    }
  }
}

TEST(NtCopyTest, EveryKernelOfThisCpuDoesTheSame) {
  const size_t size = 64 * kStreamingBlock;
  const std::string from = RandomBytes(size + 1);
  for (const StreamingKernel& kernel : StreamingKernels()) {
    if (!kernel.supported) continue;
    alignas(64) static char to[64 * kStreamingBlock];
    kernel.copy(to, from.data() + 1, size);
    EXPECT_EQ(memcmp(to, from.data() + 1, size), 0) << kernel.name;
    kernel.zero(to, size);
    EXPECT_EQ(std::string(to, size), std::string(size, '\0')) << kernel.name;
  }
}

}  // namespace
}  // namespace memtide
