#include "base/numa.h"

#include <sched.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A root of sysfs on a machine with two nodes, of two CPUs each.
class NumaTopologyTest : public testing::Test {
 protected:
  NumaTopologyTest() {
    Write("devices/system/node/online", "0-1");
    Write("devices/system/node/node0/cpulist", "0,2");
    Write("devices/system/node/node1/cpulist", "1,3");
    Write("bus/pci/devices/0000:17:00.0/numa_node", "1");
    Write("bus/pci/devices/0000:03:00.0/numa_node", "-1");
  }
  void Write(const std::string& path, const std::string& line) {
    const std::filesystem::path at = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << line << "\n";
  }

  const std::string root_ = testing::TempDir() + "/sysfs";
  const NumaTopology topology_{root_};
};

TEST_F(NumaTopologyTest, ADeviceHasItsNodeAndTheNodeItsCpus) {
  EXPECT_THAT(topology_.Nodes(), ElementsAre(0, 1));
  EXPECT_EQ(topology_.NodeOfPci("0000:17:00.0"), 1);
  EXPECT_EQ(topology_.NodeOfPci("0000:03:00.0"), absl::nullopt) << "sysfs does not know";
  EXPECT_EQ(topology_.NodeOfPci("0000:99:00.0"), absl::nullopt) << "there is none";
  const NumaPlacement placement = topology_.On(1);
  EXPECT_EQ(placement.node, 1);
  EXPECT_THAT(placement.cpus, ElementsAre(1, 3));
}

TEST_F(NumaTopologyTest, WithoutAChoiceMemoryAndThreadsAreAnywhere) {
  EXPECT_EQ(topology_.On(absl::nullopt).node, absl::nullopt);
  EXPECT_EQ(topology_.On(7).node, absl::nullopt) << "there is none";
  Write("devices/system/node/online", "1");
  EXPECT_EQ(topology_.On(1).node, absl::nullopt) << "the only one";
  EXPECT_THAT(topology_.On(1).cpus, IsEmpty());
  EXPECT_THAT(NumaTopology(root_ + "/none").Nodes(), IsEmpty());
}

TEST(CpuListTest, IsReadAsTheKernelWritesIt) {
  EXPECT_THAT(ParseCpuList("0-2,8"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(ParseCpuList("5"), ElementsAre(5));
  EXPECT_THAT(ParseCpuList(""), IsEmpty());
  EXPECT_THAT(ParseCpuList("1-x"), IsEmpty());
  EXPECT_THAT(ParseCpuList("1-2-3"), IsEmpty());
  EXPECT_THAT(ParseCpuList("0-99999999"), IsEmpty());
}

TEST(PreferNodeTest, TheKernelHasTheNodeOfTheRange) {
  const Bytes size = KiB(64);
  void* const mapped =
      mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  char* const memory = static_cast<char*>(mapped);
  const auto before = PreferredNode(memory);
  if (!before.ok()) GTEST_SKIP() << "this sandbox forbids it: " << before.status();
  EXPECT_EQ(*before, absl::nullopt);
  const absl::Status preferred = PreferNode(memory, size, 0);
  ASSERT_TRUE(preferred.ok()) << preferred;
  EXPECT_EQ(*PreferredNode(memory), 0);
  memory[0] = 'x';
  EXPECT_EQ(*NodeOfPage(memory), 0);
  EXPECT_FALSE(PreferNode(memory, size, 1000).ok()) << "no machine has it";
  munmap(mapped, size.count());
}

TEST(RunOnTest, AThreadRunsOnThoseOfTheCpusThatItMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  std::thread([&] {
    cpu_set_t now;
    RunOn({});
    RunOn({CPU_SETSIZE + 5});
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &now)) << "none is not a choice";
    RunOn({first, CPU_SETSIZE - 1});
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(first, &now));
  }).join();
}

}  // namespace
}  // namespace memtide
