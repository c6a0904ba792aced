#include "base/available_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace memtide {
namespace {

class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() {
    EXPECT_NE(mkdtemp(&root_[0]), nullptr);
    Write("/proc/meminfo", "MemTotal:       25165824 kB\nMemAvailable:   16777216 kB\n");
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_ = "/tmp/memtide-memory-XXXXXX";
};

TEST_F(AvailableMemoryTest, WithoutCgroupsTheMachineIsTheLimit) {
  EXPECT_EQ(GetAvailableMemory(root_).bytes, GiB(16));
  EXPECT_EQ(GetAvailableMemory(root_).limited_by, "this machine");
  EXPECT_EQ(GetAvailableMemory(root_).limit, Bytes(0));
}

TEST_F(AvailableMemoryTest, AParentCgroupIsALimitAndItsPageCacheDoesNotCount) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/container/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/pod/memory.max", "8589934592\n");
  Write("/sys/fs/cgroup/pod/memory.current", "3221225472\n");
  Write("/sys/fs/cgroup/pod/memory.stat",
        "anon 7\ninactive_file 536870912\nactive_file 536870912\n");
  EXPECT_EQ(GetAvailableMemory(root_).bytes, GiB(6));
  EXPECT_EQ(GetAvailableMemory(root_).limited_by, "cgroup /sys/fs/cgroup/pod");
  EXPECT_EQ(GetAvailableMemory(root_).limit, GiB(8));
}

TEST_F(AvailableMemoryTest, ACgroupOfVersion1IsALimit) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n");
  Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5368709120\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5368709120\n");
  EXPECT_EQ(GetAvailableMemory(root_).bytes, Bytes(0));
  EXPECT_EQ(GetAvailableMemory(root_).limited_by, "cgroup /sys/fs/cgroup/memory/a");
}

TEST_F(AvailableMemoryTest, WhatIsTheCallersOwnCountsUpToEachLimit) {
  EXPECT_EQ(GetAvailableMemory(root_, GiB(4)).bytes, GiB(20));
  EXPECT_EQ(GetAvailableMemory(root_, GiB(20)).bytes, GiB(24)) << "all that the machine has";
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "8589934592\n");
  Write("/sys/fs/cgroup/a/memory.current", "6442450944\n");
  EXPECT_EQ(GetAvailableMemory(root_, GiB(4)).bytes, GiB(6));
  EXPECT_EQ(GetAvailableMemory(root_, GiB(20)).bytes, GiB(8)) << "not charged to the group";
}

TEST(AvailableMemoryHereTest, IsPlausibleOnThisMachine) {
  EXPECT_GT(GetAvailableMemory().bytes, MiB(1));
  EXPECT_LT(GetAvailableMemory().bytes, GiB(1 << 20));
}

TEST_F(AvailableMemoryTest, ALimitOnTwoProcessesLeavesWhatNeitherUses) {
  Write("/proc/self/status",
        "Name:\tmemtided\nRssAnon:\t    1024 kB\nRssFile:\t 9999 kB\n"
        "RssShmem:\t    2048 kB\n");
  Write("/proc/7/status", "RssAnon:\t    4096 kB\nRssShmem:\t    2048 kB\n");
  EXPECT_EQ(LeftOfLimit(MiB(10), 7, root_), MiB(3)) << "the pool's pages count once";
  EXPECT_EQ(LeftOfLimit(MiB(10), 8, root_), MiB(7)) << "there is no such process";
  EXPECT_EQ(LeftOfLimit(MiB(5), 7, root_), Bytes(0));
}

}  // namespace
}  // namespace memtide
