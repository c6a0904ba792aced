#include "client/memory/region.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "client/memory/descriptor.h"

namespace memtide::client {
namespace {

// msync(2) fails with ENOMEM for pages that are not mapped.
bool IsMapped(char* page) { return msync(page, 1, MS_ASYNC) == 0 || errno != ENOMEM; }

TEST(HostMappingTest, AllOfARegionIsMappedUntilItsLastOwnerEnds) {
  const Bytes size = MiB(4);
  const Descriptor memory(memfd_create("region_test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(size.count())), 0);
  char* base = nullptr;
  {
    HostMapping mapping = HostMapping::Of(memory.get(), size);
    base = mapping.base();
    ASSERT_NE(base, nullptr);
    base[size.count() - 1] = 'm';
    const HostMapping moved = std::move(mapping);
    EXPECT_EQ(moved.base(), base);
    EXPECT_TRUE(IsMapped(base));
  }
  EXPECT_FALSE(IsMapped(base));
  EXPECT_FALSE(IsMapped(base + size.count() - getpagesize()));
}

}  // namespace
}  // namespace memtide::client
