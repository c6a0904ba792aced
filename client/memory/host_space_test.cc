// The addresses that a space reserves.
#include "client/memory/host_space.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "base/bytes.h"

namespace memtide::client {
namespace {

Bytes Addresses() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return Bytes(pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

TEST(HostSpaceTest, WhatAlignmentNeededIsGivenBack) {
  constexpr Bytes kSize = MiB(128);
  // The addresses of the space begin below these, at no multiple of its chunks.
  ASSERT_NE(mmap(nullptr, (kSize * 2 + Bytes(4096)).count(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0),
            MAP_FAILED);
  const Bytes before = Addresses();
  const auto space = HostSpace::Reserve({MiB(64), 2, false});
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*space)->base()) % MiB(64).count(), 0u);
  EXPECT_LT(Addresses() - before, kSize + MiB(1));
}

}  // namespace
}  // namespace memtide::client
